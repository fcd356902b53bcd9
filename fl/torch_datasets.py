"""Converts torch data sets to samples: `torch.utils.data.Dataset`s whose items are pairs (input, target)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.samples import Array, Samples

# The samples of one client, or a pair of its samples for training and for tests. A pair may be a list,
# because torch's `random_split` returns one.
OwnData: TypeAlias = "ClientData | Samples | Dataset[Any] | tuple[Any, Any] | list[Any]"


def samples_of(data: Samples | Dataset[Any], name: str = "data set") -> Samples:
    """Return all items of a data set, in memory. Raise `DataError`, which calls the data set `name`, if an
    item is not a pair (input, target), if items differ in shape, or if there are none."""
    if isinstance(data, Samples):
        return data
    pairs = [_pair(item, name) for item in _items(data)]
    if not pairs:
        raise DataError(f"the {name} is empty: give at least one item")
    inputs, targets = zip(*pairs, strict=True)
    if len({each.shape for each in inputs}) > 1 or len({each.shape for each in targets}) > 1:
        raise DataError(f"the items of the {name} differ in shape: make them alike")
    return Samples(np.stack(inputs), np.stack(targets))


def _items(data: Dataset[Any]) -> Iterator[Any]:
    if hasattr(data, "__len__"):
        return (data[index] for index in range(len(data)))
    return iter(data)  # an IterableDataset


def _pair(item: Any, name: str) -> tuple[Array, Array]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"an item of the {name} is not a pair (input, target): return both")
    return _array(item[0]), _array(item[1])


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def client_data_of(data: OwnData) -> ClientData:
    """Return the data of one client: samples or a data set, which it is trained and tested on, or a pair of
    them (a tuple or a list) for training and for tests. Raise `DataError` if `data` is none of these."""
    if isinstance(data, ClientData):
        return data
    train: Any
    test: Any
    train, test = data if isinstance(data, tuple | list) and len(data) == 2 else (data, data)
    for each in (train, test):
        if not isinstance(each, Samples | Dataset):
            raise DataError(
                f"data must be fl.samples.Samples, fl.federation.ClientData, a torch Dataset, or a pair "
                f"(train, test), not {type(each).__name__}"
            )
    if test is train:
        made = tested = samples_of(train)
    else:
        made, tested = samples_of(train, "training set"), samples_of(test, "test set")
    return ClientData(train=made, validation=tested, test=tested)


def federation_of(data: Mapping[int, OwnData], name: str = "") -> Federation:
    """Return the data of clients by id. The number of classes is the largest target + 1, or None if targets
    are floats. Raise `DataError` if an id is not a whole number, or if the data of a client are invalid."""
    if any(type(each) is not int or each < 0 for each in data):
        raise DataError("the ids of clients must be whole numbers from 0")
    clients = {member: client_data_of(each) for member, each in data.items()}
    targets = [each.train.y for each in clients.values()]
    classes = None
    if targets and all(each.dtype.kind in "iu" for each in targets):
        classes = int(max(each.max() for each in targets)) + 1
    return Federation(clients, classes=classes, name=name)

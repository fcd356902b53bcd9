"""Converts what torch projects load their data with to samples: data sets and `DataLoader`s.

An item of a data set is a pair (input, target), or a dictionary with both, as data sets of Hugging Face have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.samples import Array, Samples

# The samples of one client, or a pair of its samples for training and for tests. A pair may be a list,
# because torch's `random_split` returns one.
OwnData: TypeAlias = "ClientData | Samples | Dataset[Any] | DataLoader[Any] | tuple[Any, Any] | list[Any]"

# The usual names of inputs and targets in an item that is a dictionary.
INPUTS: Final = ("img", "image", "pixel_values", "x", "input", "inputs", "features", "input_ids", "data")
TARGETS: Final = ("label", "labels", "y", "target", "targets")
_NUMBERS: Final = "fiu"  # kinds of numpy's types


def is_data_set(data: object) -> bool:
    """Return whether `data` is a torch `DataLoader` or `Dataset`, or has the methods of a `Dataset`, as data
    sets of Hugging Face do."""
    if isinstance(data, Dataset | DataLoader):
        return True
    plain = isinstance(data, str | bytes | list | tuple | Mapping | np.ndarray | Tensor)
    return not plain and all(hasattr(data, name) for name in ("__len__", "__getitem__"))


def samples_of(data: Samples | Dataset[Any] | DataLoader[Any], name: str = "data set") -> Samples:
    """Return all items of a data set, in memory. Those of a `DataLoader` are the items of its data set that
    it draws, in the order of the data set; its batches are not formed. Raise `DataError`, which calls the
    data set `name`, if an item is not a pair (input, target), if items differ in shape, or if there are
    none."""
    if isinstance(data, Samples):
        return data
    items = _loaded(data, name) if isinstance(data, DataLoader) else _items(data)
    pairs = [_pair(item, name) for item in items]
    if not pairs:
        raise DataError(f"the {name} is empty: give at least one item")
    inputs, targets = zip(*pairs, strict=True)
    if len({each.shape for each in inputs}) > 1 or len({each.shape for each in targets}) > 1:
        raise DataError(f"the items of the {name} differ in shape: make them alike")
    return Samples(np.stack(inputs), np.stack(targets))


def _items(data: Dataset[Any]) -> Iterator[Any]:
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return (data[index] for index in range(len(data)))
    return iter(data)  # an IterableDataset


# --- loaders ---


def _loaded(loader: DataLoader[Any], name: str) -> Iterator[Any]:
    """Return the items of a loader, each collated as a batch of its own if the loader has a `collate_fn`."""
    indices = _indices(loader, name)
    items = _items(loader.dataset) if indices is None else (loader.dataset[each] for each in indices)
    collate = loader.collate_fn
    if collate is default_collate or loader.batch_sampler is None:
        return items
    return (_only(collate, item, name) for item in items)


def _indices(loader: DataLoader[Any], name: str) -> list[int] | None:
    """Return which items a loader draws; None means all, once each. Raise `DataError` if it draws others."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    batches: Any = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        raise DataError(_other_sampler(name, batches))
    sampler: Any = loader.sampler if batches is None else batches.sampler
    if type(sampler) is SubsetRandomSampler:
        return sorted(int(each) for each in sampler.indices)
    if type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and _draws_all(sampler, loader)):
        return None
    raise DataError(_other_sampler(name, sampler))


def _draws_all(sampler: RandomSampler, loader: DataLoader[Any]) -> bool:
    data: Any = loader.dataset
    return not sampler.replacement and sampler.num_samples == len(data)


def _other_sampler(name: str, sampler: object) -> str:
    kind = type(sampler).__name__
    return f"the loader of the {name} draws with {kind}: give a Dataset, such as a torch Subset, instead"


def _only(collate: Callable[[list[Any]], Any], item: Any, name: str) -> Any:
    """Return the only item of a batch that `collate` makes from `item`."""
    batch = collate([item])
    if isinstance(batch, Mapping):
        return {key: _first(value, name) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_first(value, name) for value in batch)
    raise DataError(f"collate_fn of the {name} makes no pair (input, target): return both")


def _first(values: Any, name: str) -> Any:
    try:
        (only,) = values
    except (TypeError, ValueError):
        raise DataError(f"collate_fn of the {name} makes no batch of one item from one item") from None
    return only


# --- items ---


def _pair(item: Any, name: str) -> tuple[Array, Array]:
    if isinstance(item, Mapping):
        item = _named_pair(item, name)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"an item of the {name} is not a pair (input, target): return both")
    return _array(item[0]), _array(item[1])


def _named_pair(item: Mapping[Any, Any], name: str) -> tuple[Any, Any]:
    """Return input and target of a dictionary: the entries with usual names, other entries being ignored. If
    there are none, it must have exactly two entries of numbers: the input and then the target, unless one of
    them has the usual name of the other."""
    inputs, targets = ([each for each in names if each in item] for names in (INPUTS, TARGETS))
    if len(inputs) == len(targets) == 1:
        return item[inputs[0]], item[targets[0]]
    numbers = [key for key, value in item.items() if _is_numeric(value)]
    if len(numbers) != 2 or len(inputs) > 1 or len(targets) > 1:
        keys = ", ".join(map(str, item))
        raise DataError(
            f"an item of the {name} has the entries {keys}: name the input {INPUTS[0]} and the target "
            f"{TARGETS[0]}, or return a pair (input, target)"
        )
    first, second = numbers
    if first in TARGETS or second in INPUTS:
        first, second = second, first
    return item[first], item[second]


def _is_numeric(value: Any) -> bool:
    try:
        return _array(value).dtype.kind in _NUMBERS
    except (TypeError, ValueError):
        return False


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def client_data_of(data: OwnData) -> ClientData:
    """Return the data of one client: samples, a data set or a loader, which it is trained and tested on, or
    a pair of them (a tuple or a list) for training and for tests. Raise `DataError` if `data` is none of
    these."""
    if isinstance(data, ClientData):
        return data
    train: Any
    test: Any
    train, test = data if isinstance(data, tuple | list) and len(data) == 2 else (data, data)
    for each in (train, test):
        if not isinstance(each, Samples) and not is_data_set(each):
            raise DataError(
                f"data must be fl.samples.Samples, fl.federation.ClientData, a torch Dataset or DataLoader, "
                f"or a pair (train, test), not {type(each).__name__}"
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

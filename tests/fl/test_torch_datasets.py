"""Data sets and loaders of torch projects become samples, with items as pairs or as dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fl.errors import DataError
from fl.torch_datasets import client_data_of, is_data_set, samples_of

X = torch.arange(28, dtype=torch.float32).reshape(7, 4)
Y = torch.arange(7) % 3
PAIRS = TensorDataset(X, Y)


class Rows:
    """Has the methods of a torch `Dataset`, but is none: so are data sets of Hugging Face."""

    def __init__(self, items: Sequence[object]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> object:
        return self._items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


def rows(make: Callable[[Any, Any], object]) -> Any:
    return Rows([make(x, y) for x, y in zip(X, Y, strict=True)])


def loader(data: Any, **more: Any) -> DataLoader[Any]:
    return DataLoader(data, **{"batch_size": 3, **more})


def assert_all(data: Any, indices: Sequence[int] = range(7)) -> None:
    made = samples_of(data)
    assert np.array_equal(made.x, X[list(indices)].numpy())
    assert np.array_equal(made.y, Y[list(indices)].numpy())


# --- loaders ---


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"batch_size": None},
        {"sampler": SequentialSampler(PAIRS)},
        {"batch_sampler": BatchSampler(RandomSampler(PAIRS), 3, drop_last=True), "batch_size": 1},
    ],
)
def test_a_loader_has_all_items_of_its_data_set_in_their_order(more: dict[str, Any]) -> None:
    assert_all(loader(PAIRS, **more))


@pytest.mark.parametrize("batch_size", [3, None])
def test_a_loader_may_read_a_stream(batch_size: int | None) -> None:
    assert_all(loader(Stream(), batch_size=batch_size))


def test_a_loader_keeps_to_its_part_of_the_data_set() -> None:
    """Otherwise a client would train on the samples that its project left out for tests."""
    assert_all(loader(PAIRS, sampler=SubsetRandomSampler([5, 1, 2])), [1, 2, 5])


class Fewer(BatchSampler):
    pass


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"sampler": WeightedRandomSampler([1.0] * 7, 7)}, "WeightedRandomSampler"),
        ({"sampler": RandomSampler(PAIRS, num_samples=3)}, "RandomSampler"),
        ({"sampler": RandomSampler(PAIRS, replacement=True)}, "RandomSampler"),
        ({"batch_sampler": Fewer(SequentialSampler(PAIRS), 2, False), "batch_size": 1}, "Fewer"),
    ],
)
def test_a_loader_that_draws_other_samples_is_refused(more: dict[str, Any], kind: str) -> None:
    with pytest.raises(DataError, match=f"draws with {kind}: give a Dataset"):
        samples_of(loader(PAIRS, **more))


def stacked(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])


def stacked_by_name(batch: list[Any]) -> dict[str, Any]:
    x, y = stacked(batch)
    return {"pixel_values": x, "labels": y, "names": ["a patient" for _ in batch]}


@pytest.mark.parametrize("collate", [stacked, stacked_by_name])
def test_a_loader_s_own_function_makes_the_samples(collate: Callable[[list[Any]], Any]) -> None:
    assert_all(loader(PAIRS, collate_fn=collate))


@pytest.mark.parametrize("collate", [lambda batch: 3, lambda batch: (3, 4), lambda batch: ([], [])])
def test_a_function_that_makes_no_batches_is_refused(collate: Callable[[list[Any]], Any]) -> None:
    with pytest.raises(DataError, match="collate_fn of the data set"):
        samples_of(loader(PAIRS, collate_fn=collate))


def test_a_pair_of_loaders_is_for_training_and_for_tests() -> None:
    split = {"train": SubsetRandomSampler([0, 1, 2, 3]), "test": SubsetRandomSampler([4, 5, 6])}
    train, test = (loader(PAIRS, sampler=each) for each in split.values())
    own = client_data_of((train, test))
    assert np.array_equal(own.train.x, X[:4].numpy())
    assert np.array_equal(own.test.x, X[4:].numpy())
    assert np.array_equal(client_data_of(train).test.x, X[:4].numpy())


def test_an_error_names_the_loader_of_the_pair() -> None:
    with pytest.raises(DataError, match="the test set"):
        client_data_of((loader(PAIRS), loader(rows(lambda x, y: (x,)))))


# --- items that are dictionaries ---


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: {"img": x, "label": y},
        lambda x, y: {"label": int(y), "image": x.tolist()},
        lambda x, y: {"img": x.numpy(), "label": y, "id": 7, "text": "a patient"},
        lambda x, y: {"scan": x, "label": y, "text": "a patient"},  # one usual name
        lambda x, y: {"label": y, "scan": x},
        lambda x, y: {"diagnosis": y, "x": x},
        lambda x, y: {"scan": x, "diagnosis": y},  # no usual name: in this order
        lambda x, y: {"scan": x, "diagnosis": y, "ragged": [[1], [2, 3]]},
    ],
)
def test_items_may_be_dictionaries(make: Callable[[Any, Any], object]) -> None:
    assert_all(rows(make))
    assert_all(loader(rows(make), shuffle=True))


@pytest.mark.parametrize(
    "item",
    [
        {"img": X[0]},
        {"img": X[0], "fine": 1, "coarse": 0},
        {"img": X[0], "image": X[0], "label": 1},
        {"label": 1, "labels": 1},
        {"text": "a patient", "label": 1},
        {},
    ],
)
def test_dictionaries_in_which_input_or_target_is_unclear_are_refused(item: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="name the input img and the target label") as raised:
        samples_of(Rows([item]))  # type: ignore[arg-type]
    assert "a patient" not in str(raised.value)


@pytest.mark.parametrize("data", ["file", b"file", [1], (1, 2, 3), {"a": 1}, X, X.numpy(), 3, None, iter([])])
def test_what_is_no_data_set(data: object) -> None:
    assert not is_data_set(data)


def test_what_is_a_data_set() -> None:
    data: list[Dataset[Any] | DataLoader[Any] | Rows] = [PAIRS, Stream(), loader(PAIRS), Rows([])]
    assert all(map(is_data_set, data))

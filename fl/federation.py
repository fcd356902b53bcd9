"""Data classes for a data set that is distributed over clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fl.errors import DataError
from fl.samples import Samples


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's samples for training, validation and test. Raises `DataError` without training samples."""

    train: Samples
    validation: Samples
    test: Samples

    def __post_init__(self) -> None:
        if not len(self.train):
            raise DataError("a client has no training data: leave it out")


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of all clients, by id. Raises `DataError` if none train, or if an id is in both mappings.

    `held_out`  clients that never train; they show how well a model generalises to new clients.
    `classes`   the number of classes; None for a regression.
    `name`      the name of the data set, for tables and plots.
    """

    clients: Mapping[int, ClientData]
    held_out: Mapping[int, ClientData] = field(default_factory=dict)
    classes: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError("a federation needs at least one client")
        if twice := set(self.clients) & set(self.held_out):
            raise DataError(f"clients {sorted(twice)} both train and are held out")

    @property
    def samples(self) -> dict[int, int]:
        """The number of training samples of each client, by client id."""
        return {client: len(data.train) for client, data in self.clients.items()}

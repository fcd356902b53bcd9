"""A data set that is spread over clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fl.errors import DataError
from fl.samples import Samples


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds: to train on, to choose settings by, and to judge the result by."""

    train: Samples
    validation: Samples
    test: Samples

    def __post_init__(self) -> None:
        if not len(self.train):
            raise DataError("a client without training data: leave it out")


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients by id.

    `held_out`  clients that never train; what a model is worth to them is worth to strangers.
    `classes`   how many there are; None for a regression.
    `name`      of the data set, for tables and plots.
    """

    clients: Mapping[int, ClientData]
    held_out: Mapping[int, ClientData] = field(default_factory=dict)
    classes: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError("a federation without clients")
        if twice := set(self.clients) & set(self.held_out):
            raise DataError(f"clients {sorted(twice)} both train and are held out")

    @property
    def samples(self) -> dict[int, int]:
        """How many each client trains on."""
        return {client: len(data.train) for client, data in self.clients.items()}

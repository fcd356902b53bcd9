"""An algorithm of one's own: k-means over points that never leave their clients.

The server asks which points are nearest to each centre, and learns their number and their sum.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum
from protocols.rounds import Outcome, Query, Round
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from secagg import Count, LInf, Part, SumSpec
from secagg.sum_spec import bits_for_cohort
from sims.runtime import Setting, secure_sum


@dataclass(frozen=True)
class Assign(Query):
    """Ask every client to assign its points to the nearest centre."""

    kind: ClassVar[str] = "assign"
    centres: Vector


@dataclass(frozen=True, kw_only=True)
class KMeans(Algorithm[ModelState, NoMemory]):
    """Find `groups` centres of points in [-1, 1]. `dim` is `groups` times the features of a point."""

    groups: int
    cap: int = 1000  # most points of a client

    def sums(self) -> tuple[Sum, ...]:
        sizes = Count(self.cap)
        parts = (
            Part(name="points", size=self.dim, bits=32, bound=LInf(float(self.cap))),
            Part(name="sizes", size=self.groups, bits=bits_for_cohort(sizes, self.clients), bound=sizes),
        )
        reveals = "how many points are nearest to each centre, and their sum"
        return (Sum(query=Assign, spec=SumSpec(parts=parts), reveals=reveals, least_weight=0.0),)

    def round(self, state: ModelState) -> Round[ModelState]:
        total = yield Assign(state.model)
        old, sizes = state.model.reshape(self.groups, -1), total["sizes"][:, None]
        new = np.where(sizes > 0, total["points"].reshape(old.shape) / np.maximum(sizes, 1), old)
        return Outcome(ModelState(as_vector(new.ravel())), {"moved": float(np.abs(new - old).max())})

    def client(self, learner: Any, _memory: NoMemory) -> "Assigner":
        return Assigner(self.groups, learner[: self.cap])


@dataclass
class Assigner(ClientRound[NoMemory]):
    """One client in one round. Its learner is an array of points."""

    groups: int
    points: Vector

    def answer(self, query: Query) -> dict[str, Any]:
        assert isinstance(query, Assign)
        centres = query.centres.reshape(self.groups, -1)
        nearest = np.square(self.points[:, None] - centres).sum(axis=2).argmin(axis=1)
        mine = nearest[:, None] == np.arange(self.groups)
        return {"points": (mine.T @ self.points).ravel(), "sizes": mine.sum(axis=0).astype(np.uint64)}


def main() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([[-0.6, 0.6], [0.1, -0.5], [0.7, 0.5]])
    clients: dict[int, Any] = {
        client: truth[rng.integers(3, size=50)] + 0.1 * rng.standard_normal((50, 2)) for client in range(20)
    }
    algorithm = KMeans(dim=6, clients=20, groups=3)
    channel = secure_sum(algorithm, clients, Setting(corrupt=2, dropout=0.1))
    run = Run(algorithm, channel, algorithm.start(np.array([-0.5, 0.0, 0.0, 0.0, 0.5, 0.0])))
    moved = 1.0
    while moved > 1e-3 and (report := run.round()).completed:
        moved = float(report.facts["moved"])
        print(f"centres moved by {moved:.3f}")
    channel.close()
    print(run.model.reshape(3, 2).round(2))


if __name__ == "__main__":
    main()

"""Sketched SGD: a short sketch of the sum of updates shows its large coordinates, and only these are summed.

"Communication-efficient Distributed SGD with Sketching". A sketch is linear, so the sketch of a sum is the
sum of the sketches. The first sum of a round is a sketch. The second sum has the exact values of the
coordinates that are largest in the sketch. Clients keep all others and add them to their next updates.

A client with the update D computes u <- momentum * u + D and v <- v + u, where v is its unsent vector. The
server asks for p2 * k coordinates of the sum of all v, and moves the model along the k largest of them. In
the paper, clients then reset these k coordinates to zero. A client that is not invited to the next round
would not learn which they are. So here clients reset all coordinates that they were asked for, and the server
keeps the unused values for later rounds. If all clients are in every sum, no u or v is clipped, and the
server's rate is 1, then

    what the model moved + what the server keeps + the mean of all v = the sum of all means of u

The server chooses the coordinates of the second sum. It learns only sums, as in plain averaging. But unsent
coordinates of v change little between rounds, and are summed again in the next sketch: if the clients of two
rounds differ by one client, their totals differ by about that client's v.

Count sketches ("Finding Frequent Items in Data Streams") are short tables from which the large coordinates of
a long vector v can be read. Every row of the table adds each coordinate, with a random sign, to a random
column. The estimate of a coordinate is the median over the rows of the entry in its column times its sign. In
one row, the error e has E e^2 <= |v|^2 / columns, because all other coordinates have random signs. So

    P(|e| > t |v| / sqrt(columns)) <= 1 / t^2,

and the median has such an error only if half of the rows have. A public seed determines columns and signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.algorithm import Algorithm, Sum, TrainingClient
from protocols.averaging import WEIGHT, clipped, mean_of, share_of, weight_part
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, CAP_MEANING, parameter
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import SERVER, MalformedMessage, ParameterError
from secagg.hashing import digest
from secagg.mask_keystream import KeyStream
from secagg.sum_spec import L2, LInf, Part, SumSpec, Total

SKETCH: Final = "sketch"
VALUES: Final = "values"
GROUP: Final = "waiting"


@dataclass(frozen=True)
class Sketch(Query):
    """Asks each client to add its update of `model` to its unsent vector, and for a sketch of the result."""

    kind: ClassVar[str] = "sketch"
    model: Vector


@dataclass(frozen=True)
class Heaviest(Query):
    """Asks for exact values of the clients' unsent vectors at `places`: indices from 0, in rising order."""

    kind: ClassVar[str] = "heaviest"
    places: Vector


@dataclass(frozen=True)
class SketchState:
    """The server's state: the model, and `kept`, means of clients' values not yet added to the model."""

    model: Vector
    kept: Vector


@dataclass(frozen=True, repr=False)  # it is private
class UnsentUpdate:
    """A client's memory. Both vectors are None before its first round. `velocity` is its last update plus
    momentum times the velocity before. `backlog`, its unsent vector, is the sum of all velocities since a
    coordinate was last sent. Both are clipped. Coordinates that were sent become 0 in both."""

    velocity: Vector | None = None
    backlog: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class SketchedSGD(Algorithm[SketchState, UnsentUpdate]):
    """Clients add updates to an unsent vector, and send a sketch (a short linear summary) of it. The server
    finds the largest coordinates in the sum of sketches, asks for their exact sums, and moves the model."""

    memory_type: ClassVar[type] = UnsentUpdate
    state_type: ClassVar[type] = SketchState

    rows: int = parameter(
        7, "of the sketch: more columns make it finer, and more rows make it right more often"
    )
    columns: int = parameter(
        40, "of the sketch: more columns make it finer, and more rows make it right more often"
    )
    k: int = parameter(10, "coordinates along which the model moves in a round")
    p2: int = parameter(4, "coordinates that are asked for, for each of these k")
    clip: float | None = parameter(
        None,
        "largest norm of what a client has yet to send, and of what a round adds to it. It adds up "
        "over many rounds, to more than an update has",
    )
    momentum: float = parameter(0.9, "of every client; it is forgotten in coordinates that are sent")
    server_rate: float = parameter(1.0, "how far the model moves along what clients send")
    local_steps: int | None = parameter(
        None,
        "of a client in a round, by default as many as its training has. With 1, what it sends is a "
        "gradient, times its learning rate",
    )
    weighted: bool = parameter(False, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)
    bits: int = parameter(32, BITS_MEANING)
    seed: int = parameter(0, "of the sketch: which coordinates fall together. It is public")

    def check(self) -> None:
        checks.bound("clip", self.clip, "the largest norm of what a client has yet to send, such as 10.0")
        checks.whole("k", self.k, 1)
        checks.whole("p2", self.p2, 1)
        checks.real("momentum", self.momentum, 0)
        if self.momentum >= 1:
            raise ParameterError(f"momentum must be less than 1, not {self.momentum!r}", parameter="momentum")
        checks.positive("server_rate", self.server_rate)
        if self.local_steps is not None:
            checks.whole("local_steps", self.local_steps, 1)
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.whole("bits", self.bits, 2, 64)
        self.sketch  # noqa: B018  # raises if its shape is invalid

    @cached_property
    def sketch(self) -> CountSketch:
        return CountSketch(dim=self.dim, rows=self.rows, columns=self.columns, seed=self.seed)

    @property
    def asked(self) -> int:
        """The number of coordinates whose exact values are requested: k * p2, at most `dim`."""
        return min(self.k * self.p2, self.dim)

    limit = checks.CheckedBound("clip")

    def sums(self) -> tuple[Sum, ...]:
        # An entry exceeds the norm of the vector only if many coordinates of one sign share a column.
        table = Part(name=SKETCH, size=self.sketch.size, bits=self.bits, bound=LInf(self.limit))
        values = Part(name=VALUES, size=self.asked, bits=self.bits, bound=L2(self.limit))
        samples = ", and the sum of their samples" if self.weighted else ""
        weight = (weight_part(self.cap, self.clients),) if self.weighted else ()
        return (
            Sum(
                query=Sketch,
                spec=SumSpec(parts=(table, *weight), group=GROUP),
                reveals="a sketch of the sum of the clients' unsent updates: approximately its large "
                f"coordinates; the rest appears again in later sums{samples}",
            ),
            Sum(
                query=Heaviest,
                spec=SumSpec(parts=(values, *weight), group=GROUP),
                reveals=f"the sum of the clients' unsent updates, in {self.asked} coordinates that the "
                f"server chooses{samples}",
                lengths={"places": self.asked},
            ),
        )

    # --- the server's side ---

    def start(self, model: Vector) -> SketchState:
        return SketchState(as_vector(model), as_vector(np.zeros(self.dim)))

    def round(self, state: SketchState) -> Round[SketchState]:
        total = yield Sketch(state.model)
        seen = self.sketch.estimate(self._mean(total, SKETCH)) + state.kept
        places = heaviest(seen, self.asked)
        total = yield Heaviest(as_vector(places))
        kept = np.array(state.kept)
        kept[places] += self._mean(total, VALUES)
        used = heaviest(kept, self.k)
        step = np.zeros(self.dim)
        step[used] = self.server_rate * kept[used]
        kept[used] = 0.0
        facts: dict[str, Fact] = {"moved": float(np.linalg.norm(step)), "kept": float(np.linalg.norm(kept))}
        return Outcome(SketchState(as_vector(state.model + step), as_vector(kept)), facts)

    def _mean(self, total: Total, name: str) -> Vector:
        return mean_of(total, name, self.cap, weighted=self.weighted)

    def client(self, learner: Learner, memory: UnsentUpdate) -> SketchedClient:
        return SketchedClient(self, learner, memory)


class SketchedClient(TrainingClient[SketchedSGD, UnsentUpdate]):
    _after: tuple[Vector, Vector] | None = None  # u and v, with the update of this round
    _sent: NDArray[np.intp] | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Sketch):
            self._after, self._sent = self._with_update(query.model), None
            return self._weighed(SKETCH, self._algorithm.sketch.of(self._after[1]))
        assert isinstance(query, Heaviest)
        if self._after is None:
            raise MalformedMessage(SERVER, "a question about what is to be sent, before the model")
        self._sent = _checked(query.places, self._algorithm.dim)
        return self._weighed(VALUES, self._after[1][self._sent])

    def memory(self) -> UnsentUpdate:
        if self._after is None:
            return self._memory
        velocity, backlog = map(np.array, self._after)
        if self._sent is not None:
            velocity[self._sent] = backlog[self._sent] = 0.0
        return UnsentUpdate(as_vector(velocity), as_vector(backlog))

    def _with_update(self, model: Vector) -> tuple[Vector, Vector]:
        algorithm = self._algorithm
        velocity = self._learner.train(model, steps=algorithm.local_steps) - model
        if self._memory.velocity is not None:
            velocity = velocity + algorithm.momentum * self._memory.velocity
        velocity = clipped(velocity, algorithm.limit)  # otherwise a huge update would dominate all later ones
        earlier = 0.0 if self._memory.backlog is None else self._memory.backlog
        return velocity, clipped(earlier + velocity, algorithm.limit)

    def _weighed(self, name: str, values: Vector) -> Mapping[str, ArrayLike]:
        algorithm = self._algorithm
        if not algorithm.weighted:
            return {name: values}
        samples = min(self._learner.samples, algorithm.cap)
        return {name: values * share_of(samples, algorithm.cap), WEIGHT: np.array([samples], np.uint64)}


def _checked(places: Vector, dim: int) -> NDArray[np.intp]:
    """Return the indices that a server asks for, as integers. Raises `MalformedMessage` unless they are whole
    numbers from 0 to dim - 1 in rising order, without repetition."""
    valid = (places >= 0) & (places < dim) & (places == np.floor(places))
    if not valid.all() or (np.diff(places) <= 0).any():
        raise MalformedMessage(
            SERVER, f"places that are no whole numbers from 0 to {dim - 1} in rising order"
        )
    return places.astype(np.intp)


_BLOCK: Final = 1 << 16  # coordinates that are estimated at a time, so that the data fit into the cache
_HALF: Final = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class CountSketch:
    """Maps vectors of size `dim` to tables of `rows` x `columns` numbers, which show their large coordinates.

    >>> sketch = CountSketch(dim=1000, rows=5, columns=100)
    >>> heavy = np.zeros(1000)
    >>> heavy[[3, 700]] = 5.0, -2.0
    >>> heaviest(sketch.estimate(sketch.of(heavy)), 2)
    array([  3, 700])
    """

    dim: int
    rows: int
    columns: int
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("rows", self.rows, 1, 1 << 10)
        checks.whole("columns", self.columns, 1, 1 << 31)
        checks.whole("seed", self.seed, 0, (1 << 63) - 1)

    @property
    def size(self) -> int:
        """The number of entries of a sketch: `rows` * `columns`."""
        return self.rows * self.columns

    def of(self, vector: Vector) -> Vector:
        """Return the sketch of `vector`: all rows of the table, one after another."""
        rows = (
            np.bincount(places, weights=np.where(signs, -vector, vector), minlength=self.columns)
            for places, signs in zip(self._places, self._signs, strict=True)
        )
        return np.concatenate(list(rows))

    def estimate(self, sketch: Vector) -> Vector:
        """Return estimates of all coordinates of the vector (or sum of vectors) that was sketched."""
        table, found = sketch.reshape(self.rows, self.columns), np.empty(self.dim)
        for start in range(0, self.dim, _BLOCK):
            block = slice(start, start + _BLOCK)
            read = np.take_along_axis(table, self._places[:, block], axis=1)
            np.negative(read, out=read, where=self._signs[:, block])
            found[block] = np.median(read, axis=0)
        return found

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Two arrays by row and coordinate: the column of the table to which the row adds the coordinate, and
        whether it does so with a negative sign."""
        shape = self.rows, self.dim
        places, signs = np.empty(shape, np.intp), np.empty(shape, np.bool_)
        for row in range(self.rows):
            fields = (each.to_bytes(8, "big") for each in (self.seed, row, self.columns))
            words = KeyStream(digest("count sketch", *fields)).words(self.dim)
            places[row] = (words >> _HALF) * np.uint64(self.columns) >> _HALF
            signs[row] = words & np.uint64(1)
        return places, signs

    @property
    def _places(self) -> NDArray[np.intp]:
        return self._drawn[0]

    @property
    def _signs(self) -> NDArray[np.bool_]:
        return self._drawn[1]


def heaviest(vector: Vector, count: int) -> NDArray[np.intp]:
    """Return the indices of the `count` largest absolute values, in rising order; of equal ones the first."""
    return np.sort(np.argsort(-np.abs(vector), kind="stable")[:count])

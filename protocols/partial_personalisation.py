"""Partial personalisation: some parameters are shared, and the others never leave each client.

"Federated Learning with Partial Model Personalization". A client's model is w = (u, v): u are the shared
parameters, which a server keeps and sends, and v are the client's own, which never leave it. A client trains

    FedAlt   v with u fixed, then u with the new v fixed
    FedSim   both at once

Then u moves by the mean of the clients' changes of u, or with `robust` to the geometric median of the
clients' u, against corrupt clients. A query carries u alone, and a sum has as many numbers as u.

In the paper, training starts from a model that all clients have trained together, and in the end each client
fine-tunes its v. Here, the former is the initial model of a run, and the latter the parameter `finetune`.

LG-FedAvg is "Think Locally, Act Globally: Federated Learning with Local and Global Representations". Clients
train their whole model at once. Only the shared layers, the last ones, are sent and averaged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import ModelState, Sum, TrainingClient
from protocols.averaging import AveragingAlgorithm, WeightedMean, share_of
from protocols.influence_functions import GeometricMedian
from protocols.iterative_aggregation import Aggregation, Layer, Residuals
from protocols.learner import Learner, Steering
from protocols.model_index_ranges import IndexRanges, parse_index_ranges
from protocols.parameter_fields import parameter
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from secagg.sum_spec import MAX_TIMES

BATCHES: Final = "batches"
SAMPLES: Final = "samples"
START: Final = "start"
ZERO: Final = "zero"


@dataclass(frozen=True)
class Shared(Query):
    """Asks for each client's update of the shared parameters, whose values are now `shared`."""

    kind: ClassVar[str] = "shared"
    shared: Vector


@dataclass(frozen=True, repr=False)  # it is private
class OwnPart:
    """A client's memory: its own parameters, never sent; None at first, and if clients keep nothing."""

    values: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class Partial(AveragingAlgorithm[OwnPart]):
    """The base class of FedAlt and FedSim, which differ in when a client trains own and shared parameters.
    `initial`, which is never sent, is the model with clients' first own parameters (None: zeros)."""

    memory_type: ClassVar[type] = OwnPart

    personal_part: str | None = parameter(
        None,
        'the parameters that stay with each client: in a scenario "input", "output" or "adapter", a '
        'pattern of names such as "output.*", or places such as "0:320, -650:"',
        index_ranges=True,
    )
    initial: Vector | None = field(default=None, compare=False)
    weigh_by: str = parameter(
        BATCHES,
        'what clients count by, up to `cap`, if they are `weighted`: "batches", their local steps '
        'of a round, as in the paper\'s code; or "samples"',
    )
    stateful: bool = parameter(
        True,
        "whether clients keep their own parameters from round to round; else they begin every round "
        "as in the first, and only `finetune` makes a model theirs",
    )
    finetune: int = parameter(
        0,
        "passes, each as long as a round's training, in which a client trains its own parameters "
        "alone before it uses its model. Nothing is sent of it, and nothing kept",
    )
    finetune_rate: float | None = parameter(None, "learning rate of these; that of a round by default")
    robust: bool = parameter(
        False,
        "whether the shared parameters go to the geometric median of what clients train, not to the "
        "mean. It needs no clip, and takes `median_steps` sums, with the smoothing `nu`",
    )
    median_steps: int = parameter(3, "sums that the geometric median takes")
    nu: float = parameter(1e-6, "smoothing: within this distance of a client, distances count squared")

    def check(self) -> None:
        if not self.shared.size:
            raise ParameterError(
                "personal_part has all parameters: leave some that clients share", parameter="personal_part"
            )
        checks.either("weigh_by", self.weigh_by, BATCHES, SAMPLES)
        if self.initial is not None:
            self.own.check(self.initial)
        checks.whole("finetune", self.finetune, 0)
        if self.finetune_rate is not None:
            checks.positive("finetune_rate", self.finetune_rate)
        if self.robust:
            self._check_robust()
        else:
            super().check()

    def _check_robust(self) -> None:
        if self.privacy is not None:
            raise ParameterError("the robust shared part has no private variant: unset robust or privacy")
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.whole("median_steps", self.median_steps, 1, MAX_TIMES)
        self.aggregation  # noqa: B018  # raises if the steps are invalid

    # --- shared and own parameters ---

    @cached_property
    def own(self) -> IndexRanges:
        """The indices of a client's own parameters."""
        meaning = 'what of the model stays with each client, such as "output" in a scenario, or "-10:"'
        return parse_index_ranges("personal_part", self.personal_part, self.dim, meaning)

    @property
    def shared(self) -> IndexRanges:
        """The indices of the shared parameters."""
        return self.own.rest

    @cached_property
    def first(self) -> Vector:
        """A client's own parameters before its first round: those of `initial`, or zeros if it is None."""
        return as_vector(np.zeros(self.own.size) if self.initial is None else self.own.take(self.initial))

    def whole(self, shared: Vector, own: Vector) -> Vector:
        """Return the whole model with these shared and own parameters."""
        return self.shared.join(shared, own)

    def kept(self, memory: OwnPart) -> Vector:
        """Return the own parameters with which a client begins a round: `first` if it has kept none."""
        return self.first if memory.values is None or not self.stateful else memory.values

    # --- sums ---

    @cached_property
    def averaging(self) -> WeightedMean:
        return WeightedMean(
            dim=self.shared.size,
            clients=self.clients,
            clip=self.clip,
            cap=self.cap if self.weighted else 1,
            bits=self.bits,
            privacy=self.privacy,
        )

    @cached_property
    def aggregation(self) -> Aggregation:
        layer = Layer(0, self.shared.size, GeometricMedian(nu=self.nu, leave=True, bits=self.bits))
        return Aggregation(layers=(layer,), clients=self.clients, steps=self.median_steps)

    def counts(self, learner: Learner) -> int:
        """Return the number by which a client is weighted: its local steps or its samples, by `weigh_by`."""
        return learner.steps if self.weigh_by == BATCHES else learner.samples

    def sums(self) -> tuple[Sum, ...]:
        if self.robust:
            return (replace(self.aggregation.sum, lengths={"point": self.shared.size}),)
        lengths = {"shared": self.shared.size}
        return (Sum(query=Shared, spec=self.averaging.spec(), reveals=self._reveals, lengths=lengths),)

    @property
    def _reveals(self) -> str:
        what = "the sum of the clients' updates of the shared parameters"
        if self.averaging.noise is not None:
            return f"{what}, with noise"
        counted = "numbers of local batches" if self.weigh_by == BATCHES else "samples"
        return what + (f", and of their {counted}" if self.weighted else "")

    # --- the server's side ---

    def round(self, state: ModelState) -> Round[ModelState]:
        before = as_vector(self.shared.take(state.model))
        facts: dict[str, Fact] = {}
        if self.robust:
            reached = yield from self.aggregation.run(before)
            after, facts = reached.point, {"steps": reached.sums, "stopped": str(reached.stop)}
        else:
            total = yield Shared(before)
            after = before + self.server_rate * self.averaging.mean(total)
        facts["moved"] = float(np.linalg.norm(after - before))
        return Outcome(ModelState(as_vector(self.shared.put(state.model, after))), facts)

    # --- a client's side ---

    def client(self, learner: Learner, memory: OwnPart) -> PartialClient:
        return PartialClient(self, learner, memory)

    @abstractmethod
    def trained(self, learner: Learner, model: Vector) -> Vector:
        """Return a client's whole model after the local steps of a round from `model`."""

    def personal(self, memory: OwnPart, model: Vector, learner: Learner) -> Vector:
        """Return a model with the shared parameters of `model` and the client's fine-tuned own parameters."""
        whole = self.own.put(model, self.kept(memory))
        return self.tuned(learner, whole, steps=self.finetune * learner.steps, rate=self.finetune_rate)

    def tuned(self, learner: Learner, model: Vector, *, steps: int, rate: float | None) -> Vector:
        """Return `model` after `steps` local steps that change only the client's own parameters."""
        if not steps or not self.own.size:
            return as_vector(model)
        return learner.train(model, self.steering, steps=steps, rate=rate, only=self.own_mask)

    @property
    def steering(self) -> Steering:
        """The extra terms of local steps in which only own parameters change; none by default."""
        return Steering()

    @cached_property
    def own_mask(self) -> Vector:
        return self.own.mask()

    @cached_property
    def shared_mask(self) -> Vector:
        return self.shared.mask()


class PartialClient(TrainingClient[Partial, OwnPart]):
    """A client that trains at a round's first query. All its answers use the resulting shared parameters."""

    _trained: Vector | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        algorithm = self._algorithm
        if isinstance(query, Residuals):
            share = share_of(algorithm.counts(self._learner), algorithm.cap, weighted=algorithm.weighted)
            return algorithm.aggregation.contribution(self._trained_from(query.point), query.point, share)
        assert isinstance(query, Shared)
        update = self._trained_from(query.shared) - query.shared
        return algorithm.averaging.contribution(update, algorithm.counts(self._learner))

    def _trained_from(self, shared: Vector) -> Vector:
        """Return the trained shared parameters. Only the first call trains them, from `shared`."""
        if self._trained is None:
            algorithm = self._algorithm
            start = algorithm.whole(shared, algorithm.kept(self._memory))
            model = algorithm.trained(self._learner, start)
            self._trained = as_vector(algorithm.shared.take(model))
            if algorithm.stateful:
                self._memory = OwnPart(as_vector(algorithm.own.take(model)))
        return self._trained


@dataclass(frozen=True, kw_only=True)
class FedAlt(Partial):
    """Clients train first their own parameters, then the shared ones, by default for equally many steps."""

    personal_steps: int | None = parameter(
        None, "most steps on their own parameters in a round; as many as the learner takes by default"
    )
    personal_rate: float | None = parameter(None, "learning rate of these; that of the learner by default")
    pull: float = parameter(
        0.0, "strength of a penalty pull * |v - c|^2 of own parameters v, in rounds and `finetune`"
    )
    pull_to: str = parameter(START, 'its centre c: "start" for those of the first model, "zero" for zeros')

    def check(self) -> None:
        super().check()
        if self.personal_steps is not None:
            checks.whole("personal_steps", self.personal_steps, 0)
        if self.personal_rate is not None:
            checks.positive("personal_rate", self.personal_rate)
        checks.real("pull", self.pull, 0)
        checks.either("pull_to", self.pull_to, START, ZERO)

    @cached_property
    def steering(self) -> Steering:
        """The penalty on own parameters, as a proximal term of the steps that change only own parameters."""
        if not self.pull:
            return Steering()
        centre = self.first if self.pull_to == START else np.zeros(self.own.size)
        return Steering(pull=2 * self.pull, anchor=self.whole(np.zeros(self.shared.size), centre))

    def trained(self, learner: Learner, model: Vector) -> Vector:
        steps = learner.steps if self.personal_steps is None else min(self.personal_steps, learner.steps)
        model = self.tuned(learner, model, steps=steps, rate=self.personal_rate)
        return learner.train(model, only=self.shared_mask)


@dataclass(frozen=True, kw_only=True)
class FedSim(Partial):
    """Clients train own and shared parameters at once, for the learner's number of steps. (FedAlt trains one
    after the other, by default for this number of steps each.) With no personal part, this is FedAvg."""

    def trained(self, learner: Learner, model: Vector) -> Vector:
        return learner.train(model)


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(FedSim):
    """LG-FedAvg: clients train all parameters at once, but send only the few that `shared_part` selects. The
    others are personal. `personal_part`, which would select these in the base class, is not used."""

    shared_part: str | None = parameter(
        None,
        'the parameters that all clients share: in a scenario "output", a pattern of names such as '
        '"output.*", or places such as "-650:"',
        index_ranges=True,
    )
    weighted: bool = parameter(False, "the mean counts all clients the same by default")
    weigh_by: str = SAMPLES

    def check(self) -> None:
        if not self.own.rest.size:
            raise ParameterError(
                'shared_part names no parameters: set it to the last layers, such as "-10:"',
                parameter="shared_part",
            )
        super().check()

    @cached_property
    def own(self) -> IndexRanges:
        meaning = 'what of the model all clients share, such as "output" in a scenario, or "-10:"'
        return parse_index_ranges("shared_part", self.shared_part, self.dim, meaning).rest

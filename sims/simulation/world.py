"""A simulated world: clients and their data, an algorithm, a channel, and a run that has not begun."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fl.attacks import corrupt_learners, slow_down, tampering
from fl.crowd import Crowd
from fl.federation import Federation
from fl.flat import flatten
from fl.models import build as build_model
from fl.schedule import Schedule
from fl.training import Training
from protocols.algorithm import AnyAlgorithm
from protocols.run import Run
from sims.channels import SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.scenario.kinds import MODELS, attacks
from sims.scenario.settings import Settings
from sims.simulation import population
from sims.simulation.algorithm import build as build_algorithm
from sims.simulation.streams import insecure_seed, stream
from sims.simulation.watched import Watched, watch


@dataclass(frozen=True, eq=False)
class World:
    """All there is. `crowd` are honest learners; the channel has what attacks have made of them.

    `strangers` are the clients that never train, where there are any; `watched` are those that do.
    """

    settings: Settings
    federation: Federation
    corrupt: frozenset[int]
    crowd: Crowd
    strangers: Crowd | None
    algorithm: AnyAlgorithm
    channel: SessionChannel
    watched: Mapping[int, Watched]
    run: Run[Any]

    @classmethod
    def of(cls, settings: Settings, root: Path) -> World:
        """As it is before the first round."""
        federation, who = population.corrupt(settings, population.federation(settings, root))
        training = _training(settings, federation)
        crowd = _crowd(settings, federation, training, federation.clients)
        strangers = None
        if federation.held_out:
            strangers = _crowd(settings, federation, training, federation.held_out)
        algorithm = build_algorithm(
            settings,
            dim=crowd.dim,
            clients=settings.cohort.per_round or len(crowd),
            known={
                "rate": settings.training.rate,
                "steps": max(member.steps for member in crowd.values()),
                "population": len(crowd),
            },
        )
        channel = _channel(settings, algorithm, _learners(settings, crowd, who), who)
        watched = watch(channel, algorithm, settings.channel.trust)
        run = Run(algorithm, channel, algorithm.start(flatten(_module(settings, federation)).astype(float)))
        return cls(settings, federation, who, crowd, strangers, algorithm, channel, watched, run)


def _training(settings: Settings, federation: Federation) -> Training:
    given = settings.training
    return Training(
        rate=given.rate,
        steps=given.steps,
        epochs=given.epochs,
        batch=given.batch,
        momentum=given.momentum,
        weight_decay=given.weight_decay,
        clip=given.clip,
        schedule=Schedule(**given.schedule.model_dump()),
        loss=given.loss or ("squared" if federation.classes is None else "cross-entropy"),
        precision=given.precision,
    )


def _module(settings: Settings, federation: Federation) -> nn.Module:
    """The first model. What it takes in and gives out is as the data has it, unless it is set."""
    kind = settings.model.kind
    shape = next(iter(federation.clients.values())).train.x.shape[1:]
    follows: dict[str, int | None] = {"features": math.prod(shape), "classes": federation.classes}
    if len(shape) == 3:
        follows |= {"channels": shape[0], "size": shape[1]}
    accepted = MODELS.parameters(MODELS.find(kind))
    fitting = {name: value for name, value in follows.items() if name in accepted and value is not None}
    own = population.arguments(MODELS, settings.model, kind)
    return build_model(kind, seed=settings.seed, **{**fitting, **own})


def _crowd(settings: Settings, federation: Federation, training: Training, data: Mapping[int, Any]) -> Crowd:
    given = settings.training
    module = _module(settings, federation)
    return Crowd(module, data, training, seed=settings.seed, device=given.device, way=given.way)


def _learners(settings: Settings, crowd: Crowd, who: frozenset[int]) -> Mapping[int, Any]:
    """What the algorithm sees of clients: slow ones and corrupt ones look like all others."""
    learners: Mapping[int, Any] = crowd
    if settings.cohort.stragglers:
        epochs = settings.training.epochs or settings.training.steps or 1
        share = settings.cohort.stragglers
        learners = slow_down(learners, fraction=share, epochs=epochs, seed=settings.seed)
    attack = settings.attack
    if attack is None or attack.level == "message" or not who:
        return learners
    registry = attacks(attack.level)
    made = registry.find(attack.kind)(**population.arguments(registry, attack, attack.kind))
    return corrupt_learners(learners, made, who, settings.seed)


def _channel(
    settings: Settings, algorithm: AnyAlgorithm, learners: Mapping[int, Any], who: frozenset[int]
) -> SessionChannel:
    given, attack = settings.channel, settings.attack
    tamper = {}
    if attack is not None and attack.level == "message":
        own = population.arguments(attacks(attack.level), attack, attack.kind)
        tamper = tampering(attack.kind, who, settings.seed, **own)
    setting = Setting(
        trust=given.trust,
        corrupt=given.corrupt,
        dropout=given.dropout,
        draw=_draw(settings, tuple(learners)),
        insecure_seed=insecure_seed(settings.seed),
        tamper=tamper,
    )
    make = secure_sum if given.kind == "secure" else insecure_plain_sum
    return make(algorithm, learners, setting)


def _draw(settings: Settings, clients: Sequence[int]) -> Any:
    """Who is invited to a round: so many of all, each as likely as any other."""
    per_round = settings.cohort.per_round
    if per_round is None or per_round >= len(clients):
        return None

    def draw(number: int) -> list[int]:
        rng = stream("draw", settings.seed, number)
        return [int(each) for each in rng.choice(clients, per_round, replace=False)]

    return draw

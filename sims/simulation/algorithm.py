"""The algorithm of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import CatalogueEntry, find
from protocols.privacy_budget import PrivacyBudget
from protocols.serialisation import Vector
from protocols.server_optimiser import WithServerOptimiser
from secagg.errors import ParameterError
from secagg.noise.goal import Goal
from secagg.noise.promise import Promise
from sims.deploy.problems import nearest
from sims.scenario.servers import optimiser
from sims.scenario.settings import PrivacySection, ServerSection, Settings
from sims.simulation.layers import with_ranges


def build(
    settings: Settings,
    *,
    dim: int,
    clients: int,
    known: Mapping[str, Any],
    initial: Vector | None = None,
    module: nn.Module | None = None,
) -> AnyAlgorithm:
    """For a model of `dim` parameters, and at most that many clients in a round.

    `initial`  the first model; it may be left out where nothing is trained.
    `module`   the model with its layers, some of which an algorithm may be told to treat otherwise; without
               it, some parameters stand for them.
    `known`  what a simulation can say of itself: it is used for parameters that the algorithm cannot do
             without, and that are not set.
    """
    entry = find(settings.algorithm.name)
    parameters = with_ranges(entry, settings.algorithm.parameters, settings.model.kind, module)
    needed = {each.name for each in entry.settings if each.required}
    if settings.cohort.per_round is not None and "population" in entry.parameters:
        needed.add("population")
    for name in needed & known.keys() - parameters.keys():
        parameters[name] = known[name]
    if settings.privacy is not None:
        parameters["privacy"] = _privacy(entry, settings, settings.privacy, clients)
    algorithm = entry.build(dim=dim, clients=clients, initial=initial, **parameters)
    return algorithm if settings.server is None else _optimised(algorithm, settings.server)


def _optimised(algorithm: AnyAlgorithm, section: ServerSection) -> AnyAlgorithm:
    try:
        return WithServerOptimiser(algorithm=algorithm, optimiser=optimiser(section))
    except ParameterError as error:
        raise ParameterError(f"{error}; it runs without [server]") from None


def _privacy(
    entry: CatalogueEntry, settings: Settings, section: PrivacySection, clients: int
) -> PrivacyBudget:
    if entry.budget is None:
        raise ParameterError("it has no private variant, so leave out [privacy]")
    own = section.parameters
    for name in own:
        if name not in entry.budget_names:
            names = [*entry.budget_names, *PrivacySection.model_fields]
            raise ParameterError(f"privacy.{name} is no parameter of its budget; {nearest(name, names)}")
    promise = Promise(
        clients=clients,
        dropouts=section.dropouts,
        colluders=settings.channel.corrupt,
        removable=section.removable,
    )
    goal = Goal(rho=section.rho, epsilon=section.epsilon, delta=section.delta)
    return entry.budget(promise=promise, goal=goal, rounds=settings.rounds, **own)

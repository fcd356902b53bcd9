"""Builds the algorithm of a scenario: its parameters, its privacy budget and the optimiser of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import find
from protocols.catalogue_entry import CatalogueEntry
from protocols.privacy_budget import PrivacyBudget
from protocols.serialisation import Vector
from protocols.server_optimiser import ServerOptimiser, WithServerOptimiser
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from sims.config_problems import nearest
from sims.scenario.layers_by_name import with_ranges
from sims.scenario.privacy_shares import training_goal
from sims.scenario.settings import PrivacySection, ServerSection, Settings


def build(
    settings: Settings,
    *,
    dim: int,
    clients: int,
    known: Mapping[str, Any],
    initial: Vector | None = None,
    module: nn.Module | None = None,
) -> AnyAlgorithm:
    """Return the algorithm of the settings, for a model of `dim` parameters and at most `clients` clients in
    a round. Raise `ParameterError` for parameters that the algorithm does not accept.

    `initial`  the first model, for algorithms that never send clients a whole model.
    `module`   the model that layer names refer to; if None, a placeholder replaces their index ranges.
    `known`    parameter name -> value, for required parameters and `population` if they are not set.
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
        raise ParameterError(f"{error}; or remove [server]", parameter="server") from None


def _privacy(
    entry: CatalogueEntry, settings: Settings, section: PrivacySection, clients: int
) -> PrivacyBudget:
    if entry.budget is None:
        raise ParameterError("it has no private variant: remove [privacy]", parameter="privacy")
    own = section.parameters
    for name in own:
        if name not in entry.budget_names:
            names = [*entry.budget_names, *PrivacySection.model_fields]
            raise ParameterError(
                f"privacy.{name} is not a parameter of its budget; {nearest(name, names)}", parameter=name
            )
    promise = NoiseAssumptions(
        clients=clients,
        dropouts=section.dropouts,
        colluders=settings.channel.corrupt,
        removable=section.removable,
    )
    goal = training_goal(settings, section)
    return entry.budget(promise=promise, goal=goal, rounds=section.rounds_of_client(settings.rounds), **own)


def optimiser(section: ServerSection) -> ServerOptimiser:
    """Return the server's optimiser that `[server]` describes. Raise `ParameterError` if it is invalid."""
    return ServerOptimiser(kind=section.kind, **section.parameters)

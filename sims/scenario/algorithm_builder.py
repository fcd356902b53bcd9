"""Builds the algorithm of a scenario: its parameters, its privacy budget and the optimiser of the server.

For a part of the model, such as `personal_part`, a scenario may give the name of a layer ("output"), a
pattern of parameter names ("*.norm1.*"), a range of indices ("0:320"), or several of these with commas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from fl.errors import TrainingError
from fl.flat_model import dim_of
from fl.models import MODELS
from fl.parameter_groups import Groups, layer_groups
from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import find
from protocols.catalogue_entry import CatalogueEntry
from protocols.evaluation import EvaluationMetrics
from protocols.parameter_ranges import IndexRanges
from protocols.privacy_budget import HistogramBudget, PrivacyBudget
from protocols.serialisation import Vector
from protocols.server_optimiser import ServerOptimiser, WithServerOptimiser
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from secagg.noise.privacy_goal import Goal
from secagg.trust_levels import dropouts_allowed
from sims.config_problems import nearest
from sims.scenario.settings import PrivacySection, ServerSection, Settings, TailSection


def build(
    settings: Settings,
    *,
    dim: int,
    clients: int,
    known: Mapping[str, Any],
    initial: Vector | None = None,
    module: nn.Module | None = None,
) -> AnyAlgorithm:
    """Return the algorithm of the settings, for a model of `dim` parameters and up to `clients` in a round.

    `initial`  the first model; not needed if nothing is trained.
    `module`   the model, whose layers the settings may name; if None, layer names are only checked and
               replaced by a placeholder.
    `known`    parameter name -> value, for required parameters of the algorithm that are not set.

    Raise `ParameterError` for parameters that the algorithm does not accept.
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
    goal = Goal(rho=section.rho, epsilon=section.epsilon, delta=section.delta)
    return entry.budget(promise=promise, goal=goal, rounds=settings.rounds, **own)


_CHOSEN: Final = "chosen"
_SOME: Final = "0:1"  # placeholder for the ranges of a model that is not known yet


def with_ranges(
    entry: CatalogueEntry, parameters: Mapping[str, Any], kind: str, module: nn.Module | None
) -> dict[str, Any]:
    """Return the parameters of an algorithm, with layer names replaced by index ranges in the flat model.

    `kind`    the kind of the model, such as "mlp".
    `module`  the model; if None, layer names are only checked and replaced by a placeholder.

    Raise `ParameterError` with the name of the parameter if a model of this kind has no such layer.
    """
    found = dict(parameters)
    for name in entry.index_range_parameters:
        if isinstance(found.get(name), str):
            found[name] = _ranges(name, found[name], kind.replace("_", "-"), module)
    return found


def _ranges(name: str, text: str, kind: str, module: nn.Module | None) -> str:
    layers = layer_groups(kind) if kind in MODELS else {}
    pieces = [piece.strip() for piece in text.split(",")] if text.strip() else []
    if module is None:
        for piece in pieces:
            _check_name(name, piece, kind, layers)
        return _SOME if pieces else ""
    dim = dim_of(module)
    ranges: list[tuple[int, int]] = []
    for piece in pieces:
        if ":" in piece:
            ranges += _parsed(name, piece, dim).ranges
            continue
        _check_name(name, piece, kind, layers)
        try:
            groups = Groups.of(module, {_CHOSEN: layers.get(piece, piece)}, rest=_rest(module, layers, piece))
        except TrainingError as error:
            raise ParameterError(f"{name}: {_why(piece, kind, layers, error)}", parameter=name) from None
        ranges += [(each.start, each.stop) for each in groups.slices[_CHOSEN]]
    return IndexRanges.of(dim, ranges).text


def _rest(module: nn.Module, layers: Mapping[str, tuple[str, ...]], piece: str) -> str | None:
    """Return a group name for the parameters of `module` outside layer `piece`; None if there are none."""
    try:
        Groups.of(module, {_CHOSEN: layers.get(piece, piece)}, rest=None)
    except TrainingError:
        return "rest"
    return None


def _check_name(name: str, piece: str, kind: str, layers: Mapping[str, tuple[str, ...]]) -> None:
    """Raise `ParameterError` about setting `name` if `piece` is a plain word, but no layer of the model."""
    if layers and piece.isidentifier() and piece not in layers:
        raise ParameterError(
            f"{name}: {kind} has no layer {piece!r}: there are {', '.join(layers)}; or take a pattern of "
            'names of its parameters, such as "output.*"',
            parameter=name,
        )


def _parsed(name: str, piece: str, dim: int) -> IndexRanges:
    try:
        return IndexRanges.parse(piece, dim)
    except ParameterError as error:
        raise ParameterError(f"{name}: {error}", parameter=name) from None


def _why(piece: str, kind: str, layers: Mapping[str, tuple[str, ...]], error: TrainingError) -> str:
    if piece not in layers:
        return str(error).replace(f" of {_CHOSEN!r}", "")
    hint = " (adapters = true in [model] adds them)" if piece == "adapter" else ""
    return f"this {kind} has nothing that belongs to {piece!r}{hint}: take one of {', '.join(layers)}"


def optimiser(section: ServerSection) -> ServerOptimiser:
    """Return the server's optimiser that `[server]` describes. Raise `ParameterError` if it is invalid."""
    return ServerOptimiser(kind=section.kind, **section.parameters)


# --- the private histogram of errors ---


def tail_measures(settings: Settings, section: TailSection, clients: int) -> EvaluationMetrics:
    """Return the error histogram that `[tail]` sets. Raise `ParameterError` if no noise meets its goal."""
    promise = NoiseAssumptions(
        clients=clients,
        dropouts=dropouts_allowed(clients, settings.channel.dropout),
        colluders=settings.channel.corrupt,
    )
    privacy = HistogramBudget(
        promise=promise,
        goal=Goal(epsilon=section.epsilon, delta=section.delta),
        rounds=len(tail_rounds(section, settings.rounds)),
        ratio=1.0,
    )
    return EvaluationMetrics(scores=False, bins=section.bins, privacy=privacy)


def tail_rounds(section: TailSection, rounds: int) -> set[int]:
    """Return the rounds, from 1, after which the histogram of errors is computed; always also the last."""
    regular = set(range(section.every, rounds + 1, section.every)) if section.every else set()
    return regular | {rounds}

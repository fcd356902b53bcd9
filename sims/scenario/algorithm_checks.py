"""Checks an algorithm's parameters, server optimiser and privacy budget, and whether it can be built."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from torch import nn

from fl.errors import FLError
from fl.flat_model import dim_of
from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import find
from protocols.catalogue_entry import CatalogueEntry
from protocols.server_optimiser import PARAMETERS
from secagg.client_budget import Budget, Spend, sum_charge
from secagg.errors import BudgetExceeded, ParameterError, SecaggError, SpecError
from secagg.noise.zcdp_cost import charge, rho_of
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, Problems, nearest, shown
from sims.scenario import cohort_checks
from sims.scenario.algorithm_builder import build, optimiser
from sims.scenario.data_and_model_checks import model
from sims.scenario.initial_model import initial_model, start_of
from sims.scenario.settings import PrivacySection, Settings
from sims.text_format import counted

_SOME_DIM: Final = 10  # parameters of a model whose size is not known yet
_SOME_CLIENTS: Final = 2  # clients besides those that may be missing, if their number is not known yet


def check(settings: Settings, problems: Problems) -> None:
    """Add the problems of `[algorithm]`, `[server]` and `[privacy]`, alone and together with other tables."""
    if not _check_server(settings, problems):
        settings = settings.model_copy(update={"server": None})
    try:
        entry = find(settings.algorithm.name)
    except ParameterError as error:
        problems.add("algorithm.name", str(error))
    else:
        _check_algorithm(entry, settings, problems)


def _check_server(settings: Settings, problems: Problems) -> bool:
    """Add the problems of the scenario's table `[server]` to `problems`. Return True if it has none."""
    section = settings.server
    if section is None:
        return True
    if section.kind not in PARAMETERS:
        hint = nearest(section.kind, list(PARAMETERS))
        problems.add("server.kind", f"{shown(section.kind)} is not known; {hint}")
        return False
    known = PARAMETERS[section.kind]
    unknown = [name for name in section.parameters if name not in known]
    for name in unknown:
        problems.add(f"server.{name}", f"is not a parameter of {section.kind}; {nearest(name, known)}")
    if unknown:
        return False
    try:
        optimiser(section)
    except ParameterError as error:
        problems.add(f"server.{error.parameter}" if error.parameter in known else "server", str(error))
        return False
    return True


def _check_algorithm(entry: CatalogueEntry, settings: Settings, problems: Problems) -> None:
    built = _built(entry, settings, problems) if _has_all(entry, settings, problems) else None
    if built is None:
        return
    if built.table is None and settings.evaluation.what == "common":
        problems.add("evaluation.what", f'{entry.name} has no sum and no common model: set what = "personal"')
    if built.needs_all_clients and settings.cohort.per_round is not None:
        problems.add("cohort.per_round", f"{entry.name} needs all clients in every round: remove this")
    if built.most_sums > settings.channel.sums:
        problems.add("channel.sums", f"a round of {entry.name} takes {built.most_sums}: set that or more")
    try:
        built.check_trust(Trust.parse(settings.channel.trust))
    except ParameterError as error:
        problems.add("channel.trust", f"{entry.name}: {error}")
    _check_budget(settings, built, problems)
    cohort_checks.check_dropouts(settings, built, problems)


def _check_budget(settings: Settings, built: AnyAlgorithm, problems: Problems) -> None:
    """Add a problem if clients, which round up each sum's cost, cannot afford the last sum of the run."""
    if built.budget is None or built.table is None or built.max_rho is None:
        return
    adjacency, rounds = built.budget.goal.adjacency, built.budget.rounds
    costs = [
        (sum_charge(each, roster=built.clients, adjacency=adjacency), each) for each in built.table.values()
    ]
    paid = [cost for cost, spec in costs for _ in range(spec.times) if cost is not None]
    before = Spend(charge=rounds * sum(paid) - paid[-1], noised=rounds * len(paid) - 1, adjacency=adjacency)
    try:
        Budget(charge=charge(built.max_rho)).check(before, paid[-1])
    except BudgetExceeded:
        goal = "rho" if settings.privacy is not None and settings.privacy.rho is not None else "epsilon"
        problems.add(
            f"privacy.{goal}",
            f"over {counted(rounds * len(paid), 'sum')}, each costs so little (rho {rho_of(min(paid)):.3g}) "
            f"that the budget ends before the last sum, as clients round costs up: set a larger {goal}, "
            "or fewer rounds",
        )


def _has_all(entry: CatalogueEntry, settings: Settings, problems: Problems) -> bool:
    """Add a problem for each unknown key in `[algorithm]` and `[privacy]`, and for a table `[privacy]` if the
    algorithm has no private variant. Return whether there is no such problem."""
    own, privacy = settings.algorithm.parameters, settings.privacy
    unknown = [name for name in own if name not in entry.parameters]
    for name in unknown:
        try:
            entry.build(dim=_SOME_DIM, clients=_SOME_CLIENTS, **{name: own[name]})
        except ParameterError as error:
            problems.add(f"algorithm.{name}", str(error))
    if privacy is None:
        return not unknown
    if entry.budget is None:
        problems.add("privacy", f"{entry.name} has no private variant: remove [privacy]")
        return False
    names = (*entry.budget_names, *PrivacySection.model_fields)
    strange = [name for name in privacy.parameters if name not in names]
    for name in strange:
        problems.add(f"privacy.{name}", f"is not known here; {nearest(name, names)}")
    return not unknown and not strange


def _built(entry: CatalogueEntry, settings: Settings, problems: Problems) -> AnyAlgorithm | None:
    """Return the algorithm that the settings describe. If it cannot be built, add a problem and return None.
    Also add the problems of its model and of the file with initial weights."""
    try:
        module = model(settings)
        if module is not None:
            dim_of(module)  # raises `FLError` if it cannot be trained
    except FLError as error:
        problems.add("model", f"{settings.model.kind}: {error}")
        module = None
    except ConfigError as error:  # of the user's own code
        problems.add("model.kind", str(error))
        module = None
    if module is not None:
        _check_start(settings, module, problems)
    try:
        return _attempt(settings, module)
    except SpecError as error:
        few = error.bits_needed is not None and "bits" in settings.algorithm.parameters
        problems.add("algorithm.bits" if few else _blamed(settings, module), f"{entry.name}: {error}")
    except SecaggError as error:
        name = error.parameter if isinstance(error, ParameterError) else None
        known = name in entry.parameters
        problems.add(f"algorithm.{name}" if known else _blamed(settings, module), f"{entry.name}: {error}")
    return None


def _check_start(settings: Settings, module: nn.Module, problems: Problems) -> None:
    """Add a problem if the file that `model.start` names does not fit `module`. Ignore a missing file."""
    path = start_of(settings)
    if path is not None and path.is_file():
        try:
            initial_model(settings, module)
        except FLError as error:
            problems.add("model.start", str(error))


def _attempt(settings: Settings, module: nn.Module | None) -> AnyAlgorithm:
    dim = _some_dim(settings) if module is None else dim_of(module)
    clients = max(cohort_checks.invited(settings) or _some_clients(settings), 1)
    known = {"rate": settings.training.rate, "steps": 1, "population": clients}
    return build(settings, dim=dim, clients=clients, known=known, module=module)


def _some_clients(settings: Settings) -> int:
    """Return a stand-in for an unknown number of clients: two more than may drop out and collude."""
    dropouts = 0 if settings.privacy is None else settings.privacy.dropouts
    return _SOME_CLIENTS + dropouts + settings.channel.corrupt


def _some_dim(settings: Settings) -> int:
    """Return a stand-in for an unknown number of model parameters: 10, or `algorithm.subspace` if larger."""
    asked = settings.algorithm.parameters.get("subspace")
    return max(_SOME_DIM, asked) if type(asked) is int else _SOME_DIM


def _blamed(settings: Settings, module: nn.Module | None) -> str:
    """Return the table of the scenario to name in the error message if the algorithm cannot be built:
    `privacy` or `server` if it can be built without that table, otherwise `algorithm`."""
    for table in ("privacy", "server"):
        if getattr(settings, table) is not None:
            with suppress(SecaggError):
                _attempt(settings.model_copy(update={table: None}), module)
                return table
    return "algorithm"

"""Checks whether settings of a simulation contradict each other. Each one by itself is checked elsewhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fl.errors import FLError
from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import find
from protocols.catalogue_entry import CatalogueEntry
from protocols.server_optimiser import PARAMETERS
from secagg.client_budget import Budget, Spend, sum_charge
from secagg.errors import BudgetExceeded, ParameterError, SecaggError, SpecError
from secagg.noise.zcdp_cost import charge, rho_of
from secagg.trust_levels import Trust
from sims.config_problems import Problems, nearest, shown
from sims.scenario import cohort_checks
from sims.scenario.settings import OBSERVER_KINDS, PrivacySection, Settings
from sims.text_format import counted

if TYPE_CHECKING:
    from torch import nn

_SOME_DIM: Final = 10  # parameters of a model whose size is not known yet
_SOME_CLIENTS: Final = 2  # clients, if their number is not known yet
_MOST: Final = 1e6  # With a larger rate or weight decay, a step soon overflows 32-bit floats.
# These algorithms compute their own gradient steps, so an attack on trained updates has no effect on them.
_OWN_STEPS: Final = frozenset({"apfl", "per-fedavg", "per-fedbc"})


def check(settings: Settings, problems: Problems) -> None:
    """Add to `problems` every contradiction between settings."""
    from sims.scenario import data_and_model_checks

    data_and_model_checks.check(settings, problems)
    _check_training(settings, problems)
    _check_stragglers(settings, problems)
    _check_attack(settings, problems)
    _check_processes(settings, problems)
    cohort_checks.check(settings, problems)
    _check_evaluation(settings, problems)
    _check_identity(settings, problems)
    cohort_checks.check_tail(settings, problems)
    if settings.audit.canaries and settings.privacy is None and settings.tail is None:
        problems.add("audit.canaries", "there is no noise to test: set [privacy] or [tail], or remove this")
    if not _check_server(settings, problems):
        settings = settings.model_copy(update={"server": None})
    try:
        entry = find(settings.algorithm.name)
    except ParameterError as error:
        problems.add("algorithm.name", str(error))
    else:
        _check_algorithm(entry, settings, problems)


def _check_training(settings: Settings, problems: Problems) -> None:
    from fl.device import pick

    training = settings.training
    if training.epochs is not None and training.steps is not None:
        problems.add("training", "set either steps or epochs, not both")
    for name, value in (("rate", training.rate), ("weight_decay", training.weight_decay)):
        if value > _MOST:
            problems.add(f"training.{name}", f"must be at most {_MOST:g}, not {value:g}")
    try:
        pick(training.device)
    except FLError as error:
        problems.add("training.device", str(error))


def _check_stragglers(settings: Settings, problems: Problems) -> None:
    given = settings.training
    if settings.cohort.stragglers and (given.epochs or given.steps or 1) < 2:
        problems.add(
            "cohort.stragglers",
            "a single epoch or step cannot be cut short: set training.epochs or training.steps to 2 or more",
        )


def _check_attack(settings: Settings, problems: Problems) -> None:
    attack, name = settings.attack, settings.algorithm.name
    if attack is None or not attack.fraction:
        return
    clients = cohort_checks.training_clients(settings)
    if clients is not None and clients > 0 and attack.selection == "count":
        corrupt = round(attack.fraction * clients)
        if corrupt in (0, clients):
            who = (
                "every client: set it to less" if corrupt else "no client: set it to more, or remove [attack]"
            )
            problems.add("attack.fraction", f"{attack.fraction} of {clients} clients is {who}")
    if attack.level == "update" and name in _OWN_STEPS and _changes_updates(attack.kind):
        problems.add(
            "attack.kind",
            f"{attack.kind} changes the result of local training, but {name} takes gradient steps of its own"
            ': poison data instead, or set level = "answer" or "message"',
        )
    if attack.level == "answer" and not _changes_messages(attack.kind):
        problems.add(
            "attack.kind",
            f'{attack.kind} does not change messages: set level = "update", or take another kind',
        )


def _changes_updates(kind: str) -> bool:
    """Return whether attacks of this kind change the results of training. An unknown kind gives False."""
    from fl.attacks import ATTACKS

    name = kind.replace("_", "-")
    return name in ATTACKS and ATTACKS[name]().wrap is not None


def _changes_messages(kind: str) -> bool:
    """Return whether attacks of this kind can change what a client sends. An unknown kind gives True."""
    from fl.attacks import ATTACKS, is_on_messages

    name = kind.replace("_", "-")
    return name not in ATTACKS or is_on_messages(ATTACKS[name]())


def _check_processes(settings: Settings, problems: Problems) -> None:
    """Add a problem for each setting that needs all clients in one process, if the channel is "processes"."""
    if settings.channel.kind != "processes":
        return
    attack = settings.attack
    if attack is not None and attack.fraction and attack.kind == "omniscient":
        problems.add(
            "attack.kind",
            "omniscient clients know what all others are about to send, which is impossible across "
            'processes: set channel.kind = "secure", or take another attack',
        )
    for name in settings.evaluation.observe:
        if name in OBSERVER_KINDS and OBSERVER_KINDS[name].reads_clients:
            problems.add(
                "evaluation.observe",
                f"{name} reads the memory of clients, which run in other processes: "
                'set channel.kind = "secure"',
            )


def _check_evaluation(settings: Settings, problems: Problems) -> None:
    partition, part = settings.partition, settings.evaluation.part
    for name in settings.evaluation.observe:
        if name not in OBSERVER_KINDS:
            hint = nearest(name, sorted(OBSERVER_KINDS))
            problems.add("evaluation.observe", f"{name!r} is not known; {hint}")
        elif OBSERVER_KINDS[name].needs_optimum and settings.model.kind != "linear":
            problems.add(
                "evaluation.observe",
                f'{name} needs a model whose optimum is known: set model.kind = "linear", or remove it',
            )
    if partition is not None and part != "train" and not getattr(partition, part):
        problems.add("evaluation.part", f"no client has such samples: set partition.{part} to a part above 0")


def _check_identity(settings: Settings, problems: Problems) -> None:
    from secagg.errors import KeyFileError
    from secagg.net.key_files import read_key

    if settings.output.identity is None:
        return
    try:
        read_key(Path(settings.output.identity))
    except KeyFileError as error:
        problems.add("output.identity", str(error))


def _check_server(settings: Settings, problems: Problems) -> bool:
    """Add the problems of `[server]`. Return whether there are none."""
    from sims.scenario.algorithm_builder import optimiser

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


# --- the algorithm ---


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
    """Add a problem if the budget ends before the last sum because clients round up the cost of each sum."""
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
    """Add unknown keys of `[algorithm]` and `[privacy]` to `problems`. Return whether all keys are known."""
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
    """Return the algorithm of the settings. If it cannot be built, add the problem and return None."""
    from sims.scenario.data_and_model_checks import model

    try:
        module = model(settings)
    except FLError as error:
        problems.add("model", f"{settings.model.kind}: {error}")
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
    """Add a problem if the file of `model.start` holds another model. A missing file is not reported here."""
    from sims.scenario.data_and_model_checks import initial_model, start_of

    path = start_of(settings)
    if path is not None and path.is_file():
        try:
            initial_model(settings, module)
        except FLError as error:
            problems.add("model.start", str(error))


def _attempt(settings: Settings, module: nn.Module | None) -> AnyAlgorithm:
    from fl.flat_model import dim_of
    from sims.scenario.algorithm_builder import build

    dim = _some_dim(settings) if module is None else dim_of(module)
    clients = max(cohort_checks.invited(settings) or _SOME_CLIENTS, 1)
    known = {"rate": settings.training.rate, "steps": 1, "population": clients}
    return build(settings, dim=dim, clients=clients, known=known, module=module)


def _some_dim(settings: Settings) -> int:
    """Return a placeholder for an unknown number of model parameters, at least `algorithm.subspace`."""
    asked = settings.algorithm.parameters.get("subspace")
    return max(_SOME_DIM, asked) if type(asked) is int else _SOME_DIM


def _blamed(settings: Settings, module: nn.Module | None) -> str:
    """Return the table of the scenario to name in the error if the algorithm cannot be built: `privacy` or
    `server` if it can be built without that table, otherwise `algorithm`."""
    for table in ("privacy", "server"):
        if getattr(settings, table) is not None:
            with suppress(SecaggError):
                _attempt(settings.model_copy(update={table: None}), module)
                return table
    return "algorithm"

"""What is wrong with settings that are right one by one."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fl.errors import FLError
from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import CatalogueEntry, find
from secagg.budget import Budget, Spend, sum_charge
from secagg.errors import BudgetExceeded, ParameterError, SecaggError, SpecError
from secagg.noise.accounting import charge, rho_of
from secagg.thresholds import Trust
from sims.deploy.problems import Problems, nearest
from sims.scenario import cohorts, servers, tails
from sims.scenario.settings import PrivacySection, Settings
from sims.text_format import counted

if TYPE_CHECKING:
    from torch import nn

_SUBJECT: Final = re.compile(r"(?:^|; |\bset )(\w+)")
_SOME_DIM: Final = 10
_SOME_CLIENTS: Final = 2
_MOST: Final = 1e6  # above which nothing is learnt, and a step is soon no number of 32 bits
# They take steps along gradients by themselves, where corrupt updates do not reach them.
_OWN_STEPS: Final = frozenset({"apfl", "per-fedavg", "per-fedbc"})
# They look into clients, which is possible only where clients are in the same process.
_LOOK_INSIDE: Final = frozenset({"agreement", "jumps", "local-accuracy", "multipliers"})
# Observers that measure how far the best model is, which is known for linear ones.
_NEED_OPTIMUM: Final = frozenset({"optimality-gap", "ergodic-gap"})


def check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong to `problems`."""
    from sims.scenario import sources

    sources.check(settings, problems)
    _check_training(settings, problems)
    _check_stragglers(settings, problems)
    _check_attack(settings, problems)
    _check_processes(settings, problems)
    cohorts.check(settings, problems)
    _check_evaluation(settings, problems)
    _check_identity(settings, problems)
    tails.check(settings, problems)
    if settings.audit.canaries and settings.privacy is None and settings.tail is None:
        problems.add(
            "audit.canaries", "there is no noise to try out: set [privacy] or [tail], or leave this out"
        )
    if not servers.check(settings, problems):
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
            "nobody is late in a single epoch or step: set training.epochs or training.steps to 2 or more",
        )


def _check_attack(settings: Settings, problems: Problems) -> None:
    attack, name = settings.attack, settings.algorithm.name
    if attack is None or not attack.fraction:
        return
    clients = cohorts.training_clients(settings)
    if clients is not None and clients > 0 and attack.selection == "count":
        corrupt = round(attack.fraction * clients)
        if corrupt in (0, clients):
            who = "everybody: set it to less" if corrupt else "nobody: set it to more, or leave out [attack]"
            problems.add("attack.fraction", f"{attack.fraction} of {clients} clients is {who}")
    if attack.level == "update" and name in _OWN_STEPS and _changes_updates(attack.kind):
        problems.add(
            "attack.kind",
            f"{attack.kind} changes what a client's local training gives, but {name} takes steps of its own: "
            'poison data instead, or set level = "answer" or "message"',
        )
    if attack.level == "answer" and not _changes_messages(attack.kind):
        problems.add(
            "attack.kind",
            f"{attack.kind} makes no other message of an honest one: "
            'set level = "update", or take another kind',
        )


def _changes_updates(kind: str) -> bool:
    """False for what is not known: that is told elsewhere."""
    from fl.attacks import ATTACKS

    name = kind.replace("_", "-")
    return name in ATTACKS and ATTACKS[name]().wrap is not None


def _changes_messages(kind: str) -> bool:
    """True for what is not known."""
    from fl.attacks import ATTACKS, is_on_messages

    name = kind.replace("_", "-")
    return name not in ATTACKS or is_on_messages(ATTACKS[name]())


def _check_processes(settings: Settings, problems: Problems) -> None:
    """What needs everybody in one place."""
    if settings.channel.kind != "processes":
        return
    attack = settings.attack
    if attack is not None and attack.fraction and attack.kind == "omniscient":
        problems.add(
            "attack.kind",
            "omniscient clients know what all others are about to send, which nobody does across processes: "
            'set channel.kind = "secure", or take another attack',
        )
    for name in settings.evaluation.observe:
        if name in _LOOK_INSIDE:
            problems.add(
                "evaluation.observe",
                f'{name} looks into clients, which have processes of their own: set channel.kind = "secure"',
            )


def _check_evaluation(settings: Settings, problems: Problems) -> None:
    from sims.simulation.observers import OBSERVERS

    partition, part = settings.partition, settings.evaluation.part
    for name in settings.evaluation.observe:
        if name not in OBSERVERS:
            problems.add("evaluation.observe", f"{name!r} is not known; {nearest(name, sorted(OBSERVERS))}")
        elif name in _NEED_OPTIMUM and settings.model.kind != "linear":
            problems.add(
                "evaluation.observe",
                f'{name} needs an optimum that is known: set model.kind = "linear", or leave it out',
            )
    if partition is not None and part != "train" and not getattr(partition, part):
        problems.add("evaluation.part", f"nobody has such samples: set partition.{part} to a part above 0")


def _check_identity(settings: Settings, problems: Problems) -> None:
    from secagg.errors import KeyFileError
    from secagg.net.keyfiles import read_key

    if settings.output.identity is None:
        return
    try:
        read_key(Path(settings.output.identity))
    except KeyFileError as error:
        problems.add("output.identity", str(error))


# --- the algorithm ---


def _check_algorithm(entry: CatalogueEntry, settings: Settings, problems: Problems) -> None:
    built = _built(entry, settings, problems) if _has_all(entry, settings, problems) else None
    if built is None:
        return
    if built.table is None and settings.evaluation.what == "common":
        problems.add(
            "evaluation.what", f'{entry.name} sums nothing, and has no common model: set what = "personal"'
        )
    if built.needs_everybody and settings.cohort.per_round is not None:
        problems.add("cohort.per_round", f"{entry.name} needs all clients in every round: leave this out")
    if built.most_sums > settings.channel.sums:
        problems.add("channel.sums", f"a round of {entry.name} takes {built.most_sums}: set that or more")
    try:
        built.check_trust(Trust.parse(settings.channel.trust))
    except ParameterError as error:
        problems.add("channel.trust", f"{entry.name}: {error}")
    _check_budget(settings, built, problems)
    cohorts.check_dropouts(settings, built, problems)


def _check_budget(settings: Settings, built: AnyAlgorithm, problems: Problems) -> None:
    """Whether clients, who round the cost of every sum up, would go along to the last round."""
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
            f"over {counted(rounds * len(paid), 'sum')}, each is so cheap (rho {rho_of(min(paid)):.3g}) that "
            f"clients, who round costs up, could not pay for the last: set a larger {goal}, or fewer rounds",
        )


def _has_all(entry: CatalogueEntry, settings: Settings, problems: Problems) -> bool:
    """Whether the algorithm and its budget know all that is set for them."""
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
        problems.add("privacy", f"{entry.name} has no private variant: leave out [privacy]")
        return False
    names = (*entry.budget_names, *PrivacySection.model_fields)
    strange = [name for name in privacy.parameters if name not in names]
    for name in strange:
        problems.add(f"privacy.{name}", f"is not known here; {nearest(name, names)}")
    return not unknown and not strange


def _built(entry: CatalogueEntry, settings: Settings, problems: Problems) -> AnyAlgorithm | None:
    """For the model that is meant, or one of some size, which most parameters do not depend on."""
    from sims.scenario.sources import model

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
        name = _named(entry, str(error))
        problems.add(f"algorithm.{name}" if name else _blamed(settings, module), f"{entry.name}: {error}")
    return None


def _check_start(settings: Settings, module: nn.Module, problems: Problems) -> None:
    """What an earlier run has left has to be such a model. Missing files are told with other files."""
    from sims.scenario.sources import start_of
    from sims.simulation.beginning import first_model

    path = start_of(settings)
    if path is not None and path.is_file():
        try:
            first_model(settings, module)
        except FLError as error:
            problems.add("model.start", str(error).removeprefix("model.start: "))


def _named(entry: CatalogueEntry, sentence: str) -> str | None:
    """The one parameter that a sentence is about: it begins with it, or says what to set it to."""
    named = [name for name in _SUBJECT.findall(sentence) if name in entry.parameters]
    return named[0] if len(set(named)) == 1 else None


def _attempt(settings: Settings, module: nn.Module | None) -> AnyAlgorithm:
    from fl.flat import dim_of
    from sims.simulation.algorithm import build

    dim = _some_dim(settings) if module is None else dim_of(module)
    clients = max(cohorts.invited(settings) or _SOME_CLIENTS, 1)
    known = {"rate": settings.training.rate, "steps": 1, "population": clients}
    return build(settings, dim=dim, clients=clients, known=known, module=module)


def _some_dim(settings: Settings) -> int:
    """Room for what is asked of a model that is not known yet: no subspace has more dimensions."""
    asked = settings.algorithm.parameters.get("subspace")
    return max(_SOME_DIM, asked) if type(asked) is int else _SOME_DIM


def _blamed(settings: Settings, module: nn.Module | None) -> str:
    """Whether it would do without noise, or without the server's optimiser."""
    for table in ("privacy", "server"):
        if getattr(settings, table) is not None:
            with suppress(SecaggError):
                _attempt(settings.model_copy(update={table: None}), module)
                return table
    return "algorithm"

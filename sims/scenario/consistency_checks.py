"""Checks whether settings of a simulation contradict each other. Each one by itself is checked elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fl.attacks import ATTACKS, is_on_messages
from fl.device_and_threads import pick
from fl.errors import FLError
from secagg.errors import KeyFileError
from secagg.net.identity_and_registry_files import read_key
from sims.config_problems import Problems, nearest
from sims.scenario import algorithm_checks, cohort_checks, data_and_model_checks
from sims.scenario.error_histogram import check_tail
from sims.scenario.settings import OBSERVER_KINDS, Settings

_MOST: Final = 1e6  # With a larger rate or weight decay, a step soon overflows 32-bit floats.
# These algorithms compute their own gradient steps, so an attack on trained updates has no effect on them.
_OWN_STEPS: Final = frozenset({"apfl", "per-fedavg", "per-fedbc"})


def check(settings: Settings, problems: Problems) -> None:
    """Add a problem for each contradiction between settings, and for unknown algorithms and observers."""
    data_and_model_checks.check(settings, problems)
    _check_training(settings, problems)
    _check_stragglers(settings, problems)
    _check_attack(settings, problems)
    _check_processes(settings, problems)
    cohort_checks.check(settings, problems)
    _check_evaluation(settings, problems)
    _check_identity(settings, problems)
    check_tail(settings, problems)
    if settings.audit.canaries and settings.privacy is None and settings.tail is None:
        problems.add("audit.canaries", "there is no noise to test: set [privacy] or [tail], or remove this")
    algorithm_checks.check(settings, problems)


def _check_training(settings: Settings, problems: Problems) -> None:
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
    """Return whether attacks of this kind change trained models, not only data; False for an unknown kind."""
    name = kind.replace("_", "-")
    return name in ATTACKS and ATTACKS[name]().wrap is not None


def _changes_messages(kind: str) -> bool:
    """Return whether attacks of this kind change what a corrupt client sends, without knowing what other
    clients send. An unknown kind gives True."""
    name = kind.replace("_", "-")
    return name not in ATTACKS or is_on_messages(ATTACKS[name]())


def _check_processes(settings: Settings, problems: Problems) -> None:
    """Add a problem for each setting that needs all clients in one process, if the channel has several."""
    if settings.channel.kind not in ("processes", "ray"):
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
    if settings.output.identity is None:
        return
    try:
        read_key(Path(settings.output.identity))
    except KeyFileError as error:
        problems.add("output.identity", str(error))

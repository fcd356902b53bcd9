"""What a run directory states beside its ledger, held against what was signed.

The signature on a ledger covers its rows and the digest of the settings, and no other file. So the scenario
has to have that digest, and `run.json` has to say what the scenario says: above all whether everything
follows from a seed. What clients say to have spent cannot be known from a ledger, but it has limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import ValidationError

from protocols.evaluation import ErrorHistogram
from secagg.noise.accounting import rho_of
from sims.audit.evidence import LEDGER, Evidence, Row
from sims.audit.records import Entry, Records
from sims.deploy.config import toml_tables
from sims.deploy.problems import ConfigError
from sims.scenario.seed import insecure_seed
from sims.scenario.settings import Settings
from sims.sweep.cell import Cell

SCENARIO: Final = "scenario.toml"
_SAME: Final = 1e-6  # clients' costs are told as numbers of Python, and added up in another order


def settings_of(evidence: Evidence) -> Settings | None:
    """The scenario as it was run; None if it is missing, or cannot be understood."""
    try:
        tables = toml_tables(evidence.directory / SCENARIO)
        return Settings.model_validate({name: each for name, each in tables.items() if name != "name"})
    except (ConfigError, ValidationError):
        return None


def misstatements(evidence: Evidence) -> Iterator[str]:
    """What `run.json` and the scenario say that cannot be, one sentence each."""
    settings, path = settings_of(evidence), evidence.directory / SCENARIO
    if evidence.is_plain:
        if (evidence.directory / LEDGER).exists():
            yield "run.json says that the channel was plain, which keeps no ledger, but there is one"
        if settings is not None and settings.channel.kind != "plain":
            yield f"run.json says that the channel was plain, but {path} says {settings.channel.kind}"
    elif settings is None:
        yield f"{path} is missing or not as it was written: nothing proves what the settings of the run were"
    elif Cell({}, settings).digest != evidence.run.get("digest"):
        yield f"{path} is not the scenario of the run that was signed: it was altered, or so was run.json"
    else:
        yield from _told_otherwise(evidence.run, settings)


def _told_otherwise(run: Row, settings: Settings) -> Iterator[str]:
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("the channel", run["channel"], settings.channel.kind),
        ("what was trusted", run["trust"], settings.channel.trust),
        ("the number of rounds", run["rounds"], settings.rounds),
        ("the algorithm", run["algorithm"], settings.algorithm.name),
    )
    for what, told, own in pairs:
        if told != own:
            yield f"run.json and the scenario disagree on {what}: {told} and {own}"
    beside = {row["kind"] for row in run.get("sums") or () if row.get("extra")}
    if beside != (set() if settings.tail is None else {ErrorHistogram.kind}):
        yield f"run.json says that {_listed(beside)} beside the training, and the scenario says otherwise"
    if run.get("insecure_seed") != (insecure_seed(settings.seed).hex() if settings.seeded else None):
        says = "follow" if settings.seeded else "do not follow"
        yield f"by the scenario, keys and noise {says} from its insecure_seed, and run.json says otherwise"


def _listed(kinds: set[str]) -> str:
    return f"sums of {' and '.join(sorted(kinds))} were asked" if kinds else "nothing was asked"


# --- what clients have spent ---


def impossible_spends(evidence: Evidence, records: Records) -> Iterator[str]:
    """What `spend.json` says of clients that cannot be, whoever was in which sum."""
    spend: Row = evidence.spend or {}
    for extra, own in ((False, spend), (True, spend.get("tail") or {})):
        told = own.get("clients") or {}
        if not {"most", "least"} <= told.keys():
            continue
        entries = [entry for entry in records.entries if entry.asked is not None and entry.extra is extra]
        yield from _impossible(told, entries, max(int(evidence.run["clients"]), 1))


def _impossible(told: Row, entries: Sequence[Entry], clients: int) -> Iterator[str]:
    """Nobody pays for what was not asked; and those in a sum have paid for it, so somebody the average."""
    most, least = (float(told[which]["rho"]) for which in ("most", "least"))
    upper = sum(_rho(entry) for entry in entries)
    known = [entry for entry in entries if entry.logged is not None]  # others, a seed may have repeated
    average = sum((entry.contributors or 0) * _rho(entry) for entry in known) / clients
    if not least <= most <= upper * (1 + _SAME):
        yield (
            f"spend.json cannot be right: it says that a client has spent rho {most:.4g}, and another "
            f"{least:.4g}, and all that was asked costs {upper:.4g}"
        )
    elif most < average * (1 - _SAME):
        yield (
            f"spend.json cannot be right: it says that no client has spent more than rho {most:.4g}, and "
            f"those who were in the sums have spent {average:.4g} on average"
        )


def _rho(entry: Entry) -> float:
    assert entry.asked is not None  # the caller looked
    return rho_of(entry.asked["charge"] or 0)

"""Reads the files of a run directory that an audit needs. Other modules of this package check the content.

A file that is not the one that the manifest lists is not read: its contents are withheld. What `run.json`
would say is then taken from the manifest and the scenario, as far as they say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sims.config_problems import ConfigError, toml_tables
from sims.records import RunDirectory
from sims.records.ledger_signature import read_heads
from sims.records.manifest import CheckedFiles, check_files
from sims.records.run_directory import FINISHED, PLAIN_CHANNELS
from sims.records.run_file_names import (
    CANARIES,
    CLIENTS,
    LEDGER,
    LEDGER_HEAD,
    LEDGER_SEAL,
    MANIFEST,
    METRICS,
    RESULT,
    RUN,
    SCENARIO,
    SPEND,
    SUMS,
)
from sims.records.sum_records import ResumeRecord, SessionRecord, SumHistory, SumRecord
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings, insecure_seed

_OF_RUNS: Final = (
    "name", "status", "channel", "algorithm", "trust", "key_agreement",
    "clients", "per_round", "dim", "rounds",
)  # fmt: skip

# What a run on a cluster says about it, and in which types.
_OF_CLUSTERS: Final = {"address": str, "ray": str, "nodes": int, "actors": int}

# Files that nothing but the manifest vouches for.
_OBSERVED: Final = frozenset({RUN, SUMS, METRICS, SPEND, CANARIES, CLIENTS, RESULT})
# What `run.json` says, with values that stand for it if it was altered, and that are never shown.
_STAND_INS: Final[Mapping[str, Any]] = {
    "clients": 0, "per_round": 0, "dim": 0, "corrupt": 0, "seconds": {}, "command": "", "sums": (),
    "channel": "secure", "trust": "curious_server", "key_agreement": "x25519", "algorithm": "", "rounds": 0,
    "insecure_seed": None,
}  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The contents of all files of a run that an audit reads, except the ledger."""

    directory: RunDirectory
    run: Row  # `run.json`
    sessions: tuple[SessionRecord, ...]  # from the log `sums.jsonl`, like `sums` and `resumed`
    sums: tuple[SumRecord, ...]
    resumed: tuple[ResumeRecord, ...]  # the points where a stopped run was resumed
    metrics: tuple[Row, ...]  # `metrics.jsonl`
    spend: Row | None  # `spend.json`; None if there is none
    canaries: Row | None  # `canaries.json`; None if there is none
    missing: tuple[str, ...]  # the names of expected files that do not exist
    settings: Settings | None = None  # of the scenario; None if it was altered, is missing or invalid
    files: CheckedFiles = field(default_factory=lambda: CheckedFiles(None))
    withheld: frozenset[str] = frozenset()  # the names of files that are not read, because they were altered
    unknown: frozenset[str] = frozenset()  # the keys of `run` whose values are not known, and not shown

    @classmethod
    def of(cls, path: Path, server_key: bytes | None = None) -> Evidence:
        """Read the run directory `path`. If the manifest is not signed by `server_key`, if given, nothing is
        read that only the manifest vouches for. Raise `ConfigError` if `path` is not a run directory, or if a
        file is damaged that no manifest lists."""
        directory = _directory(path)
        files = check_files(directory)
        withheld = _withheld(directory, files, server_key)
        settings = None if SCENARIO in withheld else settings_of(directory)
        run = _stand_in(directory, files, settings) if RUN in withheld else _facts(directory)
        if not (directory / SUMS).exists() and SUMS not in withheld:
            raise ConfigError(f"{directory / SUMS} is missing: it lists the sums of the run")
        lines = () if SUMS in withheld else directory.read_lines(SUMS)
        history = SumHistory.of(lines, f"{directory / SUMS}")
        metrics = () if METRICS in withheld else tuple(directory.read_lines(METRICS))
        if RUN in withheld:
            run = {**run, "done": max((line.get("round", 0) for line in metrics), default=0)}
        return cls(
            directory=directory,
            run=run,
            sessions=history.sessions,
            sums=history.sums,
            resumed=history.resumed,
            metrics=metrics,
            spend=_optional(directory, SPEND, withheld),
            canaries=_optional(directory, CANARIES, withheld),
            missing=tuple(
                name
                for name in _expected(run)
                if not (directory / name).exists() and name not in files.altered
            ),
            settings=settings,
            files=files,
            withheld=withheld,
            unknown=_unknown(settings, files) if RUN in withheld else frozenset(),
        )

    @property
    def is_plain(self) -> bool:
        """Whether the run computed its sums directly, without secure aggregation."""
        return self.run["channel"] in PLAIN_CHANNELS

    @property
    def finished(self) -> bool:
        return bool(self.run["status"] == "finished")


def settings_of(directory: RunDirectory) -> Settings | None:
    """Return the settings in the scenario file of a run; None if it is missing or cannot be parsed."""
    try:
        tables = toml_tables(directory / SCENARIO)
        return Settings.model_validate({name: each for name, each in tables.items() if name != "name"})
    except (ConfigError, ValidationError):
        return None


def _withheld(directory: RunDirectory, files: CheckedFiles, server_key: bytes | None) -> frozenset[str]:
    """Return the names of the files that are not to be read."""
    foreign = server_key is not None and _signer(directory, files) != server_key
    unread = _OBSERVED if foreign or MANIFEST in files.altered else frozenset()
    return frozenset(files.altered) | unread


def _signer(directory: RunDirectory, files: CheckedFiles) -> bytes | None:
    """Return the key that signed the manifest, or else the ledger; None if nothing is signed."""
    if files.manifest is not None:
        return files.manifest.key
    try:
        head = read_heads(directory)[-1]
        head.check(_digest(directory))
    except ConfigError:  # also an invalid signature
        return None
    return head.key


def _digest(directory: RunDirectory) -> str:
    """Return the digest of the settings in the scenario file; empty if it cannot be parsed."""
    settings = settings_of(directory)
    return "" if settings is None else Variant({}, settings).digest


def _facts(directory: RunDirectory) -> dict[str, Any]:
    run = directory.facts()
    if lacking := [name for name in (*_OF_RUNS, "done") if name not in run]:
        raise ConfigError(f"{directory / RUN} is damaged: it does not say {', '.join(lacking)}")
    _check_cluster(directory, run.get("cluster"))
    return run


def _stand_in(directory: RunDirectory, files: CheckedFiles, settings: Settings | None) -> dict[str, Any]:
    """Return what stands for `run.json`, which was altered: what the manifest and the scenario say."""
    manifest, name = files.manifest, directory.path.name
    found = {
        "name": name,
        "label": name,
        "status": FINISHED if manifest is None else manifest.status,
        "digest": _digest(directory) if manifest is None else manifest.run,
        **_STAND_INS,
    }
    if settings is None and manifest is not None and manifest.ledger is None:
        found["channel"] = PLAIN_CHANNELS[0]
    if settings is None:
        return found
    return {
        **found,
        "channel": settings.channel.name,
        "trust": settings.channel.trust,
        "key_agreement": settings.channel.key_agreement,
        "algorithm": settings.algorithm.name,
        "rounds": settings.rounds,
        "insecure_seed": insecure_seed(settings.seed).hex() if settings.seeded else None,
    }


def _unknown(settings: Settings | None, files: CheckedFiles) -> frozenset[str]:
    """Return the keys of `run.json`, which was altered, that neither manifest nor scenario tells."""
    told = {"channel", "trust", "key_agreement", "algorithm", "rounds", "insecure_seed"}
    found = _STAND_INS.keys() - (set() if settings is None else told)
    return frozenset(found | (set() if files.manifest is not None else {"status"}))


def _directory(path: Path) -> RunDirectory:
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory: give that of a run, such as results/NAME")
    directory = RunDirectory(path)
    inside = [] if directory.has_records else sorted(each.parent for each in path.glob(f"*/{RUN}"))
    if inside:
        names = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")
        raise ConfigError(f"{path} holds several runs: choose one, or --compare them: {names}")
    return directory


def _check_cluster(directory: RunDirectory, cluster: object) -> None:
    """Raise `ConfigError` unless `cluster` is None or has the facts of a cluster."""
    if cluster is None:
        return
    facts = cluster if isinstance(cluster, Mapping) else {}
    wrong = [name for name, kind in _OF_CLUSTERS.items() if type(facts.get(name)) is not kind]
    if wrong:
        raise ConfigError(
            f"{directory / RUN} is damaged: cluster does not say {', '.join(wrong)} as a run writes it; take "
            "the file from a copy of the run"
        )


def _expected(run: Row) -> tuple[str, ...]:
    ledger = () if run["channel"] in PLAIN_CHANNELS else (LEDGER, LEDGER_SEAL, LEDGER_HEAD)
    return (METRICS, *ledger, *((SPEND,) if run["status"] == "finished" else ()))


def _optional(directory: RunDirectory, name: str, withheld: frozenset[str]) -> Row | None:
    return directory.read_json(name) if (directory / name).exists() and name not in withheld else None

"""Writes the run directory of a simulation, from before the first round to its end. After every round, a
signed manifest lists all files, and then the checkpoint and the other files are replaced. After a crash, rows
of the ledger after the checkpoint are kept, because their totals may have been released. Lines of sums and
metrics after the checkpoint are removed."""

from __future__ import annotations

import io
import math
import platform
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tomli_w

from protocols.algorithm import AnyAlgorithm
from secagg.keys import Identity
from secagg.ledger import Row, ServerLedger, read_ledger
from secagg.net.identity_and_registry_files import read_key
from sims.config_problems import ConfigError
from sims.records import RunDirectory
from sims.records.checkpoint import Checkpoint, PartState
from sims.records.committed_files import CommittedFiles, check_unaltered
from sims.records.ledger_signature import SignedHead, head_text
from sims.records.manifest import FileStamp
from sims.records.metrics_table import as_csv
from sims.records.run_directory import (
    FAILED,
    FINISHED,
    FORMAT,
    INTERRUPTED,
    RUNNING,
    LinesFile,
    json_text,
)
from sims.records.run_file_names import (
    CHECKPOINT,
    LEDGER,
    LEDGER_HEAD,
    METRICS,
    METRICS_TABLE,
    MODEL,
    RESULT,
    RUN,
    SCENARIO,
    SUMS,
)
from sims.records.sum_descriptions import described
from sims.records.sum_records import ResumeRecord, SessionRecord, SumHistory, SumRecord
from sims.scenario.settings import Settings, insecure_seed, insecure_server

Line: TypeAlias = dict[str, Any]  # the metrics of a round, as JSON


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The scenario `name` of a run, the hash of its settings, its swept values (`cell`) and its `label`."""

    name: str  # of the scenario
    digest: str  # identifies the settings of the run
    cell: Mapping[str, Any] = field(default_factory=dict)  # the values of the settings that the sweep varies
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """What `run.json` says of a run besides its settings: the number of clients and of attackers among them,
    the channel, whether its scenario can be simulated, the algorithms of training and error histogram, and
    the cluster that hosts the clients, if there is one."""

    clients: int
    algorithm: AnyAlgorithm
    channel: str
    attackers: int = 0
    tail: AnyAlgorithm | None = None
    can_simulate: bool = True
    cluster: Mapping[str, Any] | None = None


@contextmanager
def open_run(
    directory: RunDirectory,
    settings: Settings,
    origin: Origin,
    *,
    resume: bool,
    identity: Identity | None = None,
) -> Iterator[RunWriter]:
    """Lock a run directory and yield its writer. Without `resume`, remove the files of an earlier run first.
    `identity` signs the ledger; by default, it follows from the settings.
    If the block raises before the first checkpoint, remove the directory. Raise `ConfigError` if it holds
    other files and no run, if another process has locked it, if its checkpoint cannot be resumed, or if a
    file was altered since the run stopped."""
    directory.make()
    with directory.locked():
        saved = Checkpoint.read(directory, digest=origin.digest) if resume else None
        if saved is None:
            directory.clear()
        else:
            check_unaltered(directory)
        try:
            with ExitStack() as stack:
                yield RunWriter(directory, settings, origin, saved, stack, identity)
        except BaseException:
            _leave_nothing(directory)
            raise


def _leave_nothing(directory: RunDirectory) -> None:
    """Remove the directory of a failed run if it has neither a checkpoint nor results: a run that was never
    more than begun."""
    if not (directory / CHECKPOINT).exists() and not directory.exists:
        with suppress(ConfigError, OSError):
            directory.remove()


class RunWriter:
    """Writes the run directory of one simulation, new or resumed from `saved`. `open_run` makes it."""

    def __init__(
        self,
        directory: RunDirectory,
        settings: Settings,
        origin: Origin,
        saved: Checkpoint | None,
        stack: ExitStack,
        identity: Identity | None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._origin = origin
        self.saved = saved
        self._with_ledger = identity is not None or not settings.channel.is_plain
        self._identity = identity or _identity(settings)
        signs = self._with_ledger or settings.output.identity is not None
        self._files = CommittedFiles(directory, origin.digest, self._identity if signs else None)
        self._facts: dict[str, Any] = directory.facts() if saved is not None else {}
        # Lines of the file of sums after the checkpoint, which `_lines` removes.
        self.lost_lines = [] if saved is None else directory.read_lines(SUMS)[saved.lines[SUMS] :]
        self._sums = self._lines(SUMS, stack)
        self._metrics = self._lines(METRICS, stack)
        self._kept = self._stamps()  # of the files that grow, at the last checkpoint
        self.lines = directory.read_lines(METRICS)
        self.sessions = sum(1 for each in directory.read_lines(SUMS) if each["entry"] == "session")
        self._stack = stack
        self.ledger = self._make_ledger()
        # Whether clients may have been asked after the checkpoint.
        self.cut_off = bool(self.lost_lines or self.lost_rows())
        self._graph: dict[str, Any] | None = self._facts.get("graph")

    def _lines(self, name: str, stack: ExitStack) -> LinesFile:
        path, lost = self._directory / name, self._directory.advice.lost
        saved = self.saved
        file = LinesFile.create(path) if saved is None else LinesFile.resume(path, saved.lines[name], lost)
        stack.callback(file.close)
        return file

    def _stamps(self) -> dict[str, FileStamp]:
        files = {SUMS: self._sums, METRICS: self._metrics}
        return {name: FileStamp(*file.size_and_hash) for name, file in files.items()}

    def _make_ledger(self) -> ServerLedger | None:
        """Return the server's ledger, for this writer to read; None for a plain channel, which has none."""
        if not self._with_ledger:
            return None
        if self.saved is None:
            ServerLedger.create(self._directory / LEDGER).close()
        return self._opened()

    def _opened(self) -> ServerLedger:
        return self._stack.enter_context(ServerLedger.open(self._directory / LEDGER))

    def open_ledger(self) -> ServerLedger | None:
        """Open the server's ledger anew, for a channel to write, and return it; None for a plain channel."""
        return None if self.ledger is None else self._opened()

    # --- resume ---

    def lost_rows(self) -> tuple[Row, ...]:
        """Return the ledger's rows after the last checkpoint; () in a new run, or if there is no ledger."""
        if self.saved is None or self.saved.ledger_rows is None:
            return ()
        return read_ledger(self._directory / LEDGER).rows[self.saved.ledger_rows :]

    def lost_sums(self) -> tuple[SumRecord, ...]:
        """Return the sums that were written to `sums.jsonl` after the checkpoint; () in a new run."""
        return SumHistory.of(self.lost_lines, str(self._directory / SUMS)).sums

    def note_resumed(self, done: int, *, repeats: bool) -> None:
        """Add to `sums.jsonl` that the run resumed after `done` rounds, and if it `repeats` a cut-off one."""
        assert self.saved is not None
        rows = None if self.ledger is None else self.ledger.head.rows
        self._sums.add(
            ResumeRecord(
                round=done,
                ledger_rows=rows,
                checkpoint_rows=self.saved.ledger_rows,
                cut_off=self.cut_off,
                repeats=repeats,
            ).to_json()
        )

    # --- rounds ---

    def write_sum(self, record: SessionRecord | SumRecord) -> None:
        if self._graph is None and isinstance(record, SessionRecord) and record.graph is not None:
            neighbours, threshold = record.neighbours, record.threshold
            self._graph = {"kind": record.graph, "neighbours": neighbours, "threshold": threshold}
        self._sums.add(record.to_json())

    def next_session(self) -> int:
        self.sessions += 1
        return self.sessions - 1

    def begin(self, shape: RunShape) -> None:
        """Collect in memory the facts that are known before round 1. The first `keep` writes `run.json`."""
        given, now = self._settings, datetime.now(UTC).isoformat(timespec="seconds")
        clients = shape.clients
        self._facts = {
            "format": FORMAT,
            "name": self._origin.name,
            "cell": dict(self._origin.cell),
            "label": self._origin.label,
            "digest": self._origin.digest,
            "secagg": metadata.version("secagg"),
            "python": platform.python_version(),
            "channel": shape.channel,
            "trust": given.channel.trust,
            "key_agreement": given.channel.key_agreement,
            "insecure_seed": insecure_seed(given.seed).hex() if given.seeded else None,
            "status": RUNNING,
            "why": None,
            "rounds": given.rounds,
            "done": 0,
            "started": now,
            "seconds": {"wall": 0.0, "cpu": 0.0},
            "clients": clients,
            "per_round": min(given.cohort.per_round or clients, clients),
            "dim": shape.algorithm.dim,
            "corrupt": shape.attackers,
            "graph": None,
            "server_key": None if self.ledger is None else self._identity.public.hex(),
            "algorithm": given.algorithm.name,
            "command": f"secagg simulate {self._directory / SCENARIO}" if shape.can_simulate else "",
            "sums": described(shape.algorithm)
            + ([] if shape.tail is None else described(shape.tail, extra=True)),
        }
        self.note_cluster(shape.cluster)

    def note_cluster(self, cluster: Mapping[str, Any] | None) -> None:
        """Record the cluster that hosts the clients now, if there is one."""
        if cluster is not None:
            self._facts["cluster"] = dict(cluster)

    def resumed(self) -> None:
        """Record in `run.json` that the resumed run is running, and the key that now signs its records."""
        self._facts["server_key"] = None if self.ledger is None else self._identity.public.hex()
        if self.saved is not None:  # `run.json` may be of the round before
            self._facts |= {"done": self.saved.done, "seconds": dict(self.saved.seconds)}
        self._commit(RUNNING, self._signed_head())

    def sign_as(self, identity: Identity) -> None:
        """Sign the records with another key of the server from the next `keep` on."""
        self._identity = self._files.identity = identity
        self._facts["server_key"] = identity.public.hex()

    def stage(self, name: str, data: bytes) -> None:
        """Replace the file `name` with the next `keep` or `finish`."""
        self._files.stage(name, data)

    def keep(
        self,
        line: dict[str, Any],
        done: int,
        states: Mapping[str, PartState],
        seconds: Mapping[str, float],
        barred: Collection[int] = (),
    ) -> None:
        """After `done` rounds, write metrics (`line`), manifest, signed ledger head, checkpoint and run time.
        `barred` has the clients that are invited no more."""
        self._metrics.add(line)
        for file in (self._metrics, self._sums):
            file.sync()
        self._kept = self._stamps()
        checkpoint = Checkpoint(
            digest=self._origin.digest,
            done=done,
            training=states["training"],
            tail=states.get("tail"),
            lines={METRICS: self._metrics.count, SUMS: self._sums.count},
            ledger_rows=None if self.ledger is None else self.ledger.head.rows,
            seconds=seconds,
            barred=tuple(sorted(barred)),
        )
        files = {**self._signed_head(), CHECKPOINT: checkpoint.encode()}
        self._facts |= {"done": done, "seconds": dict(seconds)}
        if done == 0:
            files[SCENARIO] = self._scenario()
        self._commit(RUNNING, files, unsynced="" if done == 0 else RUN)

    def _signed_head(self) -> dict[str, bytes]:
        if self.ledger is None:
            return {}
        head = SignedHead.make(
            self.ledger.head, run=self._origin.digest, identity=self._identity, has_manifest=True
        )
        return {LEDGER_HEAD: head_text(self._directory, head)}

    def _scenario(self) -> bytes:
        cell = "" if not self._origin.cell else f"-{self._directory.path.name}"
        document = self._settings.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        return as_toml({"name": f"{self._origin.name}{cell}", **document}).encode()

    def _commit(
        self, status: str, files: Mapping[str, bytes], why: str | None = None, **options: Any
    ) -> None:
        """Write the manifest, `files` and last `run.json`, with this status. `options` are those of
        `CommittedFiles.commit`."""
        self._facts |= {"status": status, "why": why, "graph": self._graph}
        self._files.commit(
            {**files, RUN: json_text(self._facts)},
            status=status,
            growing=self._kept,
            ledger=None if self.ledger is None else self.ledger.head,
            **options,
        )

    # --- the end ---

    def finish(self, result: Mapping[str, Any], more: Mapping[str, Mapping[str, Any]], model: Any) -> None:
        """Write results, model, metrics as CSV and the files `more` (name -> JSON). Remove the checkpoint."""
        archive = io.BytesIO()
        np.savez(archive, model=np.asarray(model))
        files = {MODEL: archive.getvalue(), **{name: json_text(content) for name, content in more.items()}}
        files |= {**self._table(), RESULT: json_text(result)}
        self._kept = self._stamps()
        self._commit(FINISHED, files, removed=(CHECKPOINT,), settle=True)

    def stop(self) -> None:
        """Record that the run was interrupted and can be resumed. Write the metrics so far as CSV."""
        self._commit(INTERRUPTED, self._table(), settle=True)

    def leave(self, error: str | None = None) -> None:
        """Record that a served run stops before its end, because of an `error` or not, if the disk allows it.
        Do nothing if there is no checkpoint yet, or the run is finished."""
        if self._facts.get("status") == RUNNING and (self._directory / CHECKPOINT).exists():
            with suppress(ConfigError):
                self._commit(INTERRUPTED if error is None else FAILED, {}, error, settle=True)

    def fail(self, why: str) -> None:
        """Record in `run.json` why the run failed, if the disk allows it and the run has begun."""
        if not self._facts:
            return
        with suppress(ConfigError):
            self._commit(FAILED, {}, why, settle=True)

    def _table(self) -> dict[str, bytes]:
        return {METRICS_TABLE: as_csv(self._directory.read_lines(METRICS)).encode()}


def _identity(settings: Settings) -> Identity:
    """Return the key that signs the ledger: that of the settings, one derived from the seed, or a new one."""
    if settings.output.identity is not None:
        return read_key(Path(settings.output.identity))
    if settings.seeded:
        return insecure_server(settings.seed)
    return Identity.generate()


def as_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML text. Keys with the value None are left out."""
    return tomli_w.dumps(_without_none(document))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """Return a value for JSON: NumPy scalars as Python numbers, NaN and infinity as None, else unchanged."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value

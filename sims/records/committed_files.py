"""Replaces the files of a run in steps. Each step first writes the manifest that lists them. So if a process
is killed at any moment, each file is as it was before the step, or as it is after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import Final

from secagg.keys import Identity
from secagg.ledger import Head, read_ledger
from sims.config_problems import ConfigError
from sims.records.ledger_signature import AlteredLedger
from sims.records.manifest import FileStamp, Manifest, check_files, check_ledger
from sims.records.run_directory import PRIVATE, PUBLIC, RunDirectory
from sims.records.run_file_names import (
    CHECKPOINT,
    LEDGER,
    LEDGER_INDEX,
    LEDGER_LOG,
    LEDGER_SEAL,
    LOCK,
    MANIFEST,
    METRICS,
    OUTCOME,
    REPORT,
    RUN_FILES,
    SUMS,
    draft_of,
)

_PRIVATE: Final = frozenset({CHECKPOINT, OUTCOME})  # files that only their owner may read
# Files that are not replaced as a whole: those that grow, those of the ledger, and the page.
_OTHERS: Final = frozenset({SUMS, METRICS, LEDGER, LEDGER_SEAL, LEDGER_LOG, LEDGER_INDEX, REPORT, MANIFEST})


class CommittedFiles:
    """The files of a run that are replaced as a whole, and its manifest, which `identity` signs. `digest` is
    that of the settings. The files that are there already, of a run that is resumed, are listed as well."""

    def __init__(self, run: RunDirectory, digest: str, identity: Identity | None) -> None:
        self._run = run
        self._digest = digest
        self.identity = identity
        self._stamps = {
            name: FileStamp.of_file(run / name)
            for name in (*RUN_FILES, LOCK)
            if name not in _OTHERS and (run / name).exists()
        }
        self._grown: Mapping[str, FileStamp] = {}  # the growing files, as in the last manifest
        self._staged: dict[str, bytes] = {}

    def stage(self, name: str, data: bytes) -> None:
        """Replace the file `name` in the next step."""
        self._staged[name] = data

    def commit(
        self,
        files: Mapping[str, bytes],
        *,
        status: str,
        growing: Mapping[str, FileStamp],
        ledger: Head | None,
        removed: Iterable[str] = (),
        unsynced: str = "",
        settle: bool = False,
    ) -> None:
        """Write the manifest, then the staged files and `files`, in this order, and remove others. `growing`
        has the stamps of growing files as the last checkpoint has them. With `settle`, write the manifest
        once more, without the files as they were before: the run stops. The file `unsynced` may be lost if
        the power fails. Raise `ConfigError` on a disk error."""
        changes = {**self._staged, **files}
        gone = [name for name in removed if name in self._stamps]
        new = {name: FileStamp.of(data) for name, data in changes.items()}
        before: dict[str, FileStamp | None] = {
            name: self._stamps.get(name)
            for name in (*changes, *gone)
            if new.get(name) != self._stamps.get(name)
        }
        before |= {name: each for name, each in self._grown.items() if each != growing.get(name)}
        left = {name: each for name, each in {**self._stamps, **new}.items() if name not in gone}
        manifest = Manifest(
            run=self._digest,
            status=status,
            version=metadata.version("secagg"),
            files=left,
            growing=growing,
            ledger=ledger,
            before=before,
        )
        self._write(manifest)
        self._grown = dict(growing)
        for name, data in changes.items():
            mode = PRIVATE if name in _PRIVATE else PUBLIC
            self._run.write(name, data, mode=mode, sync=name != unsynced)
            self._stamps[name] = new[name]
            self._staged.pop(name, None)
        for name in gone:
            with suppress(OSError):
                (self._run / name).unlink(missing_ok=True)
            del self._stamps[name]
        if settle:
            self._clear()
            self._write(Manifest(**{**vars(manifest), "before": {}}))

    def _write(self, manifest: Manifest) -> None:
        self._run.write(MANIFEST, manifest.signed(self.identity).encode())

    def _clear(self) -> None:
        """Remove files that a killed process was writing, and the page about an earlier state of the run."""
        for name in (*map(draft_of, (*RUN_FILES, LOCK)), REPORT):
            with suppress(OSError):
                (self._run / name).unlink(missing_ok=True)


def check_unaltered(run: RunDirectory) -> None:
    """Raise `ConfigError` if a file of a run is not as its manifest lists it: to go on would sign what others
    may have written. A run of an earlier version has no manifest, and is not checked."""
    found = check_files(run)
    problems = list(found.altered.values())
    if found.manifest is not None and found.manifest.ledger is not None and not problems:
        try:
            check_ledger(found.manifest, read_ledger(run / LEDGER).rows)
        except AlteredLedger as error:
            problems.append(f"{run / LEDGER} was altered: {error}")
    if problems:
        raise ConfigError(f"{problems[0]}; the run cannot go on with it: {run.advice.lost}")

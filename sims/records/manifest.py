"""The manifest of a run directory: size and hash of every file, signed with the key that signs the ledger.

The manifest is replaced before the files that it lists, so a process that is killed in between leaves files
of which each is as listed in `files` or, as it was before that step, in `before`. Lines that are appended
later are beyond the listed size of a growing file. Of the ledger, whose file SQLite changes, the manifest has
the head, which depends on all rows; the seal of the ledger covers the bytes of its file.

A plain channel has no server with a key, so its manifest has no signature, unless `[output] identity` names a
key. Then the files are only consistent: anybody can write other files and another manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from secagg.errors import BadSignature
from secagg.hashing import DIGEST_BYTES
from secagg.keys import KEY_BYTES, Identity
from secagg.keys import verify as verify_signature
from secagg.ledger import Head, Row
from sims.config_problems import ConfigError
from sims.records.ledger_signature import (
    SIGNATURE_BYTES,
    AlteredLedger,
    bytes_of,
    read_heads,
    row_count,
    row_hashes,
)
from sims.records.run_directory import (
    FINISHED,
    RunDirectory,
    disk_errors,
    json_object,
    json_text,
    read_file,
)
from sims.records.run_file_names import (
    LEDGER,
    LEDGER_HEAD,
    LEDGER_INDEX,
    LEDGER_LOG,
    LEDGER_SEAL,
    MANIFEST,
    REPORT,
    RUN_FILES,
    draft_of,
)

FORMAT: Final = 1
_PURPOSE: Final = "manifest of a run"
_MOST_BYTES: Final = 1 << 20
_MOST_NAME: Final = 255  # characters of a file's name
_DRAFTS: Final = frozenset(map(draft_of, (*RUN_FILES, MANIFEST)))
_TRIES: Final = 3  # a run that goes on replaces files while they are read
# Files that other records vouch for: the ledger's head, its seal, and the page that can be computed again.
_ASIDE: Final = frozenset({MANIFEST, LEDGER, LEDGER_SEAL, REPORT})
_OF_SQLITE: Final = frozenset({LEDGER_LOG, LEDGER_INDEX})


class AlteredManifest(ConfigError):
    """Raised if the manifest of a run is not as it was written, or if its signature is invalid."""


@dataclass(frozen=True)
class FileStamp:
    """The size and the SHA-256 of a file, or of its first bytes."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> FileStamp:
        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> FileStamp:
        """Return the stamp of a whole file. Raise `ConfigError` if it cannot be read."""
        with disk_errors(path, "read"), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(file.tell(), found)

    def begins(self, path: Path) -> bool:
        """Return whether the first bytes of a file have this stamp. May raise `ConfigError`."""
        with disk_errors(path, "read"), path.open("rb") as file:
            state, left = hashlib.sha256(), self.size
            while left and (chunk := file.read(min(left, 1 << 20))):
                state.update(chunk)
                left -= len(chunk)
        return not left and state.hexdigest() == self.sha256

    def body(self) -> dict[str, Any]:
        return {"bytes": self.size, "sha256": self.sha256}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the directory of a run holds at one moment, with the signature of the server, if it has a key.

    `run`     the digest of the settings. `status` is that of `run.json`, `version` that of the program.
    `files`   the stamps of whole files by name. `growing` has those of files to which lines are appended.
    `ledger`  the head of the ledger; None if the run has none.
    `before`  the stamps of files that the step after this manifest replaced or removed, as they were before
              it; None for a file that did not exist.
    """

    run: str
    status: str
    version: str
    files: Mapping[str, FileStamp]
    growing: Mapping[str, FileStamp]
    ledger: Head | None
    before: Mapping[str, FileStamp | None] = field(default_factory=dict)
    key: bytes | None = None
    signature: bytes | None = None

    def signed(self, identity: Identity | None) -> Manifest:
        """Return this manifest with the signature of `identity`; without one if there is no key."""
        if identity is None:
            return replace(self, key=None, signature=None)
        own = replace(self, key=identity.public, signature=None)
        return replace(own, signature=identity.sign(_PURPOSE, own.encode()))

    def encode(self) -> bytes:
        """Return the only text that `parse` accepts for this manifest."""
        return json_text(
            {
                "format": FORMAT,
                "run": self.run,
                "status": self.status,
                "secagg": self.version,
                "files": {name: each.body() for name, each in sorted(self.files.items())},
                "growing": {name: each.body() for name, each in sorted(self.growing.items())},
                "ledger": None
                if self.ledger is None
                else {"rows": self.ledger.rows, "hash": self.ledger.hash.hex()},
                "before": {
                    name: None if each is None else each.body() for name, each in sorted(self.before.items())
                },
                "key": None if self.key is None else self.key.hex(),
                "signature": None if self.signature is None else self.signature.hex(),
            }
        )

    @classmethod
    def read(cls, run: RunDirectory) -> Manifest | None:
        """Return the manifest of a run; None if there is none. Raise `AlteredManifest` if it is not as it was
        written, or if its signature is invalid, and `ConfigError` if it cannot be read."""
        path = run / MANIFEST
        if not path.exists():
            return None
        data = read_file(path, "")
        altered = AlteredManifest(f"{path} was altered: it is not as it was written")
        if len(data) > _MOST_BYTES:
            raise altered
        try:
            found = _parse(json_object(data))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise altered from None
        if found.encode() != data:
            raise altered
        found.check_signature(path)
        return found

    def check_signature(self, path: Path) -> None:
        """Raise `AlteredManifest` unless `key` has signed this manifest, or there is neither."""
        if self.key is None and self.signature is None:
            return
        try:
            content = replace(self, signature=None).encode()
            verify_signature(self.key or b"", self.signature or b"", _PURPOSE, content, peer="server")
        except (BadSignature, ValueError):
            raise AlteredManifest(
                f"{path} was altered: the signature is not that of key {(self.key or b'').hex()[:16]}..."
            ) from None

    @property
    def is_final(self) -> bool:
        """Whether the run is over, so that no file may have more than is listed."""
        return self.status == FINISHED


def _parse(body: Any) -> Manifest:
    """Return the manifest with these contents. Raise `ValueError`, `KeyError` or the like if it is none."""
    if body is None or body["format"] != FORMAT:
        raise ValueError
    ledger, key, signature = body["ledger"], body["key"], body["signature"]
    before = {_name(name): None if each is None else _stamp(each) for name, each in body["before"].items()}
    return Manifest(
        run=_text(body["run"]),
        status=_text(body["status"]),
        version=_text(body["secagg"]),
        files={_name(name): _stamp(each) for name, each in body["files"].items()},
        growing={_name(name): _stamp(each) for name, each in body["growing"].items()},
        ledger=None
        if ledger is None
        else Head(row_count(ledger["rows"]), bytes_of(ledger["hash"], DIGEST_BYTES)),
        before=before,
        key=None if key is None else bytes_of(key, KEY_BYTES),
        signature=None if signature is None else bytes_of(signature, SIGNATURE_BYTES),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _name(name: str) -> str:
    if not name or "/" in name or name in (".", "..") or len(name) > _MOST_NAME:
        raise ValueError
    return name


def _stamp(body: Any) -> FileStamp:
    size = body["bytes"]
    if type(size) is not int or size < 0:
        raise ValueError
    return FileStamp(size, bytes_of(body["sha256"], DIGEST_BYTES).hex())


# --- checking the files ---


@dataclass(frozen=True)
class CheckedFiles:
    """The result of `check_files`: the manifest (None if there is none, or if it was altered), what is wrong
    by name of the file, and remarks about what no manifest covers."""

    manifest: Manifest | None
    altered: Mapping[str, str] = field(default_factory=dict)  # name -> a sentence
    remarks: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()  # remarks about files that exist only while the ledger is open
    settled: frozenset[str] = frozenset()  # the files that are as listed, and not as they were before
    unsigned: bool = False  # whether files have more than is listed, or there are more


def check_files(run: RunDirectory) -> CheckedFiles:
    """Compare the files of a run with its manifest. Altered files are reported in the result. If the run goes
    on meanwhile, and has replaced its manifest, compare again."""
    for _ in range(_TRIES):
        before = _content(run)
        found = _checked(run)
        if not found.altered or _content(run) == before:
            break
    return found


def _content(run: RunDirectory) -> bytes | None:
    path = run / MANIFEST
    return read_file(path, "") if path.exists() else None


def _checked(run: RunDirectory) -> CheckedFiles:
    try:
        manifest = Manifest.read(run)
    except AlteredManifest as error:
        return CheckedFiles(None, {MANIFEST: str(error)})
    if manifest is None:
        return CheckedFiles(None, _removed_manifest(run))
    altered: dict[str, str] = {}
    settled: set[str] = set()
    remarks: list[str] = []
    longer: list[str] = []
    for name in sorted({*manifest.files, *manifest.growing, *manifest.before}):
        problem = _compared(run / name, name, manifest, settled, remarks)
        longer += _longer(run / name, name, manifest)
        if problem:
            altered[name] = f"{run / name} {problem}"
    in_use: list[str] = []
    for name in _unlisted(run, manifest):
        path = run / name
        if name in _OF_SQLITE and manifest.ledger is not None and not _left_over(path, manifest):
            in_use.append(f"{name} is a file of SQLite, which nothing signs: the ledger is or was in use")
        elif not manifest.is_final and name in _DRAFTS:
            remarks.append(f"{name} is a file that the run was writing when it was stopped")
            longer.append(name)
        else:
            altered[name] = f"{path} is not listed in the manifest: it was added"
    unsigned = bool(longer) or (manifest.is_final and bool(in_use))
    return CheckedFiles(manifest, altered, tuple(remarks), tuple(in_use), frozenset(settled), unsigned)


def _longer(path: Path, name: str, manifest: Manifest) -> list[str]:
    """Return the name of a growing file that has more than is listed, or nothing."""
    listed = manifest.growing.get(name)
    return [name] if listed is not None and path.is_file() and path.stat().st_size > listed.size else []


def _removed_manifest(run: RunDirectory) -> dict[str, str]:
    """Return what is wrong with a run without a manifest: the ledger's signature says whether it has one."""
    try:
        had = (run / LEDGER_HEAD).exists() and read_heads(run)[-1].has_manifest
    except ConfigError:
        return {}  # reported with the ledger
    path = run / MANIFEST
    return {MANIFEST: f"{path} is missing: the ledger's signature says that there is one"} if had else {}


def _compared(path: Path, name: str, manifest: Manifest, settled: set[str], remarks: list[str]) -> str:
    """Return what is wrong with a listed file; empty if nothing is."""
    listed = manifest.files.get(name, manifest.growing.get(name))
    earlier = name in manifest.before
    if not path.is_file():
        absent = listed is None or (earlier and manifest.before[name] is None)
        return "" if absent else "is missing: it was removed"
    if name in manifest.growing:
        return _grown(path, name, manifest, settled, remarks)
    found = FileStamp.of_file(path)
    if found == listed:
        settled.add(name)
        return ""
    if earlier and found == manifest.before[name]:
        remarks.append(f"{name} is as it was before the last step: the run was stopped while it wrote")
        return ""
    why = "" if listed is None else f": {_difference(found, listed)}"
    return f"was altered{why}" if listed is not None else "is there, but the run has removed it"


def _grown(path: Path, name: str, manifest: Manifest, settled: set[str], remarks: list[str]) -> str:
    listed, size = manifest.growing[name], path.stat().st_size
    earlier = manifest.before.get(name)
    if listed.begins(path):
        settled.add(name)
    elif earlier is not None and earlier.begins(path):
        listed = earlier
    else:
        return f"was altered: {_difference(FileStamp.of_file(path), listed)}"
    if size > listed.size and manifest.is_final:
        return f"was altered: it has {size:,} bytes, and {listed.size:,} were signed"
    if size > listed.size:
        remarks.append(
            f"the last {size - listed.size:,} bytes of {name} came after the manifest: nothing signs them"
        )
    return ""


def _difference(found: FileStamp, listed: FileStamp) -> str:
    if found.size != listed.size:
        return f"it has {found.size:,} bytes, and the manifest lists {listed.size:,}"
    return "its content is not what the manifest lists"


def _unlisted(run: RunDirectory, manifest: Manifest) -> Iterator[str]:
    with disk_errors(run.path, "read"):
        names = sorted(each.name for each in run.path.iterdir())
    listed = {*manifest.files, *manifest.growing, *manifest.before, *_ASIDE}
    yield from (name for name in names if name not in listed)


def _left_over(path: Path, manifest: Manifest) -> bool:
    """Return whether a file of SQLite is one that a finished run does not leave: a log with content."""
    return path.name == LEDGER_LOG and manifest.is_final and path.stat().st_size > 0


def check_ledger(manifest: Manifest, rows: Sequence[Row]) -> int:
    """Return how many rows of a ledger came after the manifest. Raise `AlteredLedger` if the rows before are
    not those of the manifest."""
    head = manifest.ledger
    if head is None:
        raise AlteredLedger("the manifest says that the run has no ledger, but there is one")
    hashes = list(row_hashes(rows))
    if head.rows >= len(hashes) or hashes[head.rows] != head.hash:
        raise AlteredLedger(f"the ledger does not begin with the {head.rows} rows that the manifest lists")
    return len(rows) - head.rows

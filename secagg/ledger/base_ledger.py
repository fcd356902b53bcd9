"""`Ledger`, the base class of client and server ledgers, its `Owner`, and how its rows describe a sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from secagg.errors import ForeignLedger, NewerLedger, ParameterError
from secagg.identity_registry import MAX_ID
from secagg.keys import KEY_BYTES
from secagg.ledger.chained_rows import Body, Head, Row
from secagg.ledger.file import LedgerFile, create_file
from secagg.ledger.file_location import one_path
from secagg.sum_spec import Count, Part, SumSpec


class Role(StrEnum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a ledger: a client with id `member`, or a server. `identity` is its public key, if any."""

    role: Role
    member: int | None = None
    identity: bytes = b""

    @classmethod
    def client(cls, member: int, identity: bytes = b"") -> Self:
        if type(member) is not int or not 0 <= member <= MAX_ID:
            raise ParameterError(f"member must be a whole number from 0 to {MAX_ID}")
        return cls(role=Role.CLIENT, member=member, identity=_public(identity))

    @classmethod
    def server(cls, identity: bytes = b"") -> Self:
        return cls(role=Role.SERVER, identity=_public(identity))

    def __str__(self) -> str:
        name = "the server" if self.role is Role.SERVER else f"client {self.member}"
        return f"{name} with key {self.identity.hex()[:16]}..." if self.identity else name

    def body(self) -> Body:
        return {"role": str(self.role), "member": self.member, "identity": self.identity.hex()}

    @classmethod
    def of(cls, body: Body) -> Self:
        identity = bytes.fromhex(body["identity"])
        return cls(role=Role(body["role"]), member=body["member"], identity=identity)


def _public(identity: bytes) -> bytes:
    if not isinstance(identity, bytes) or len(identity) not in (0, KEY_BYTES):
        raise ParameterError(
            f"identity must be the {KEY_BYTES} bytes of a public key, or empty: give identity.public"
        )
    return identity


class Ledger(ABC):
    """The base class of client and server ledgers. Their state is computed only from the rows on disk."""

    def __init__(self, path: Path | str, owner: Owner) -> None:
        self._path = one_path(path)
        self._owner = owner
        self._file = LedgerFile(self._path, self._apply)

    @classmethod
    def _create(cls, path: Path | str, owner: Owner) -> Self:
        create_file(one_path(path), {"entry": "created", **owner.body()})
        return cls(path, owner)

    def _apply(self, row: Row) -> None:
        if row.body["entry"] == "created":
            found = Owner.of(row.body)
            if found != self._owner:
                raise ForeignLedger(f"{self._path} belongs to {found}, not to {self._owner}")
        elif not self._take(row.body):
            raise NewerLedger(
                f"row {row.number} of {self._path} is of a kind that this version does not know"
            )

    @abstractmethod
    def _take(self, body: Body) -> bool:
        """Update the state of this ledger from one row's `body`. Return False if the row type is unknown."""

    @property
    def head(self) -> Head:
        """The row count and last hash. If noted elsewhere, they show whether an old copy was put back."""
        self._file.catch_up()
        return self._file.head

    def check_writable(self) -> None:
        """Raise `LedgerError` if the file is locked for long, was moved or deleted, or is damaged. This does
        not tell whether the disk has room for another row."""
        self._file.check_writable()

    def __repr__(self) -> str:
        end = "" if self._file.is_open else ", closed"
        return f"{type(self).__name__}(path={str(self._path)!r}, rows={self._file.head.rows}{end})"

    def close(self) -> None:
        """Close the file. Later calls raise `LedgerError`, so a client cannot answer any more."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def describe(spec: SumSpec) -> dict[str, Any]:
    """Return a JSON object with the parts of `spec`, their bounds and noise, and the noise assumptions."""
    promise = None if spec.promise is None else asdict(spec.promise)
    return {"parts": [_part(part) for part in spec.parts], "promise": promise}


def _part(part: Part) -> dict[str, Any]:
    bound: dict[str, Any] = {"type": type(part.bound).__name__, "limit": getattr(part.bound, "limit", None)}
    if isinstance(part.bound, Count):
        bound["total"] = part.bound.total
    noise = part.noise
    return {
        "name": part.name,
        "size": part.size,
        "bits": part.bits,
        "bound": bound,
        "noise": None if noise is None else {"scale": noise.scale, "variance": str(noise.variance)},
    }

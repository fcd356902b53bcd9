"""`Ledger`, the base class of client and server ledgers, its `Owner`, and how its rows describe a sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from secagg.errors import (
    SERVER,
    DamagedLedger,
    ForeignLedger,
    MalformedMessage,
    NewerLedger,
    ParameterError,
    Peer,
    WrongHandOver,
)
from secagg.hand_over import HandOver, HandOverSigner, chain_of
from secagg.identity_registry import MAX_ID
from secagg.keys import KEY_BYTES
from secagg.ledger.chained_rows import Body, Head, Row
from secagg.ledger.file import LedgerFile, create_file
from secagg.ledger.file_location import one_path
from secagg.sum_spec import Count, Part, SumSpec

HAND_OVER: Final = "hand-over"  # the type of row that gives a ledger a new owner key


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

    @property
    def peer(self) -> Peer:
        return SERVER if self.member is None else self.member

    def after(self, body: Body) -> Owner:
        """Return the owner after the row `body` of type `HAND_OVER`. Raises `MalformedMessage` or
        `WrongHandOver` if the statement in it is not one of this owner's key. A signature of the authority is
        not verified: who appended the row has verified it."""
        statement = HandOver.parse(bytes.fromhex(body["statement"]), sender=self.peer)
        if (statement.owner, statement.old) != (self.peer, self.identity):
            raise WrongHandOver(self.peer, "a hand-over of another key than the owner's")
        if statement.signer is HandOverSigner.OLD_KEY:
            statement.verify(authority=None)
        return replace(self, identity=statement.new)

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
    """The base class of client and server ledgers. Their state is computed only from the rows on disk.

    A ledger belongs to one key. If `owner` has another, `hand_overs` must lead from that key to the owner's:
    they are signed by the key before, or by the public key `authority`. Then they become rows of the ledger.
    """

    def __init__(
        self,
        path: Path | str,
        owner: Owner,
        *,
        hand_overs: Iterable[HandOver] = (),
        authority: bytes | None = None,
    ) -> None:
        self._path = one_path(path)
        self._owner = owner  # as this object was opened; after all rows are read, the owner in the file
        self._past: set[bytes] = set()  # keys that were handed over
        self._hand_overs: tuple[HandOver, ...] = ()
        self._authority = authority
        asked = owner
        self._file = LedgerFile(self._path, self._apply)
        try:
            self.offer(hand_overs)
            self._claim(asked)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def _create(cls, path: Path | str, owner: Owner) -> Self:
        create_file(one_path(path), {"entry": "created", **owner.body()})
        return cls(path, owner)

    def _apply(self, row: Row) -> None:
        if row.body["entry"] == "created":
            found = Owner.of(row.body)
            if (found.role, found.member) != (self._owner.role, self._owner.member):
                raise ForeignLedger(f"{self._path} belongs to {found}, not to {self._owner}")
            self._owner = found
        elif row.body["entry"] == HAND_OVER:
            self._past.add(self._owner.identity)
            self._owner = after_hand_over(self._owner, row, self._path)
        elif not self._take(row.body):
            raise NewerLedger(
                f"row {row.number} of {self._path} is of a kind that this version does not know"
            )

    # --- its owner ---

    def offer(self, hand_overs: Iterable[HandOver]) -> bool:
        """Keep statements for the moment at which the owner uses its new key. They are verified then. Return
        whether one of them is new."""
        new = tuple(each for each in hand_overs if each not in self._hand_overs)
        self._hand_overs += new
        return bool(new)

    def _claim(self, owner: Owner) -> None:
        """Raise `ForeignLedger` unless the ledger belongs to `owner`, or is handed over to it; if so, append
        the hand-overs."""
        self._file.catch_up()
        if owner == self._owner:
            return
        foreign = ForeignLedger(f"{self._path} belongs to {self._owner}, not to {owner}")
        if replace(owner, identity=b"") != replace(self._owner, identity=b"") or not owner.identity:
            raise foreign
        try:
            steps = chain_of(
                self._hand_overs,
                owner.peer,
                old=self._owner.identity,
                new=owner.identity,
                authority=self._authority,
            )
        except WrongHandOver as error:
            raise ForeignLedger(f"{foreign}; {error.why} (secagg keygen --renew makes one)") from None
        for step in steps:
            self._file.append(partial(self._handed_over, step))

    def _handed_over(self, step: HandOver) -> Body:
        if step.old != self._owner.identity:
            raise ForeignLedger(f"{self._path} was handed over by another process just now; try again")
        if step.new in self._past:
            raise ForeignLedger(f"{self._path} was handed over by this key before; make another key")
        return {"entry": HAND_OVER, "statement": step.encode().hex()}

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


def after_hand_over(owner: Owner, row: Row, path: Path) -> Owner:
    """Return the owner of a ledger after a row of type `HAND_OVER`. Raises `DamagedLedger` if it is wrong."""
    try:
        return owner.after(row.body)
    except (MalformedMessage, WrongHandOver, KeyError, ValueError):
        raise DamagedLedger(f"row {row.number} of {path} hands it over to a wrong key; restore it") from None


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

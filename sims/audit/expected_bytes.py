"""Predicts the bytes of a session's set-up or of one sum from the lengths of the protocol's messages. `Sizes`
computes the length of every message by the formulas of docs/protocol.md, section 15. No message is encoded
here, so a comparison with measured bytes tests both the documentation and the program. The other inputs are
counts from the log: frames (messages) per stage, and around how many clients others dealt shares, were asked
and survived. In most stages, all frames are messages of one type. In others, some clients may decline or
leave, and the log does not count these messages separately. Then every possible number of them is tried. If
one of these numbers gives exactly the measured bytes, these are the prediction. If a client was excluded, the
log does not say what it sent, and nothing is predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.audit.recorded_sum_spec import promise_of
from sims.audit.run_files import Row
from sims.records.sum_records import SessionRecord, SumRecord

STAGES: Final = tuple(stage.value for stage in Stage)
SET_UP: Final = STAGES[:3]
Expected = Mapping[str, int | None]  # bytes by stage; None if the records do not suffice for a prediction


def sizes_of(session: SessionRecord, trust: str, key_agreement: str = KeyAgreement.X25519) -> Sizes:
    """Return the message lengths of a session. They depend on its members and graph, and on these terms."""
    members = session.frames_up.get("advertise", 0)
    return Sizes(
        trust=trust,
        signed=Trust.parse(trust) is Trust.MALICIOUS,
        key_agreement=KeyAgreement.parse(key_agreement),
        members=members,
        neighbours=session.neighbours or max(members - 1, 0),
        threshold=session.threshold or 0,
        sums=session.sums,
        seeds=session.seeds,
    )


def set_up(session: SessionRecord, sizes: Sizes) -> tuple[Expected, Expected]:
    """Return (sent, received): predicted bytes of all clients in set-up, by stage; None if unpredictable."""
    if session.failure is not None or session.exclusions:
        return dict.fromkeys(SET_UP), dict.fromkeys(SET_UP)
    frames, told = session.frames_up, session.frames_down
    up = {"advertise": sizes.members * sizes.advertisement, "share": frames.get("share", 0) * sizes.shares}
    down: dict[str, int | None] = {"advertise": told.get("advertise", 0) * sizes.invitation}
    delivered = sum(clients for _dealt, clients, _deposited in session.exchanged)
    deliveries = sum(clients * sizes.delivery(dealt) for dealt, clients, _deposited in session.exchanged)
    if not sizes.is_hybrid:  # Shares are delivered at the end of the stage in which they are dealt.
        return up, down | {"share": (told.get("share", 0) - delivered) * sizes.keys + deliveries}
    up["deposit"] = sum(made * sizes.deposit(dealt) for dealt, _clients, made in session.exchanged)
    return up, down | {"share": told.get("share", 0) * sizes.keys, "deposit": _deliveries(session, sizes)}


def _deliveries(session: SessionRecord, sizes: Sizes) -> int | None:
    """Return the predicted bytes of all deliveries with hybrid keys. A simulated client that makes no deposit
    may have dropped out before its delivery or after it, but all of them alike; otherwise return None."""
    frames = session.frames_down.get("deposit", 0)
    for counted in (1, 2):  # all that were sent shares, or all that made deposits
        if frames == sum(row[counted] for row in session.exchanged):
            return sum(row[counted] * sizes.delivery(row[0]) for row in session.exchanged)
    return None


@dataclass(frozen=True)
class ExpectedSum:
    """Predicts the bytes that clients send and receive in one sum."""

    asked: Row  # the ledger's row about the query
    logged: SumRecord  # the log's record of the sum
    sizes: Sizes  # the message lengths of the sum's session

    @property
    def index(self) -> int:
        assert self.logged.index is not None  # a client was asked
        return self.logged.index

    # --- up ---

    def up(self) -> Expected:
        """Return the predicted bytes that all clients together send in the sum, by stage."""
        if self.logged.exclusions:
            return dict.fromkeys(STAGES)
        sizes, index = self.sizes, self.index
        refusals, masked = len(self.logged.refusals), self.logged.masked
        frames, measured = self.logged.frames_up, self.logged.bytes_up
        inputs, reveals = self._inputs(), self._reveals()
        return {
            "mask": None
            if inputs is None
            else _settled(
                measured.get("mask", 0),
                fixed=inputs,
                frames=frames.get("mask", 0) - masked,
                usual=sizes.short(index),
                other=sizes.leave,
                most=refusals,
            ),
            "confirm": _settled(
                measured.get("confirm", 0),
                frames=frames.get("confirm", 0),
                usual=sizes.confirmation(index),
                other=sizes.leave,
                most=refusals,
            ),
            "reveal": None
            if reveals is None
            else reveals + (frames.get("reveal", 0) - self.logged.revealed) * sizes.leave,
        }

    def _inputs(self) -> int | None:
        """Return the predicted bytes of all `MaskedInput` messages; None if the log has no such counts."""
        around, vector = self._around(), packed_bytes(self.asked["parts"])
        if sum(sent for _asked, _survived, sent, _revealed in around) != self.logged.masked:
            return None
        return sum(sent * self.sizes.masked(self.index, vector, asked - 1) for asked, _, sent, _ in around)

    def _reveals(self) -> int | None:
        """Return the predicted bytes of all `Reveal` messages; None if the log has no neighbour counts."""
        around = self._around()
        if sum(revealed for _asked, _survived, _sent, revealed in around) != self.logged.revealed:
            return None
        promise = promise_of(self.asked["promise"])
        # The number of noise components that are removed for every survivor.
        surplus = 0 if promise is None else len(promise.surplus(self.logged.invited, self.logged.masked))
        return sum(
            revealed * self.sizes.reveal(self.index, asked, survived, surplus)
            for asked, survived, _sent, revealed in around
        )

    def _around(self) -> list[list[int]]:
        """Return rows (asked, survived, sent, revealed): `sent` clients sent inputs and `revealed` of these
        revealed shares, of whose neighbourhoods (the client included) `asked` were asked and `survived` sent
        inputs."""
        if self.sizes.is_ring:
            return [list(row) for row in self.logged.around]
        logged = self.logged
        return [[logged.invited, logged.masked, logged.masked, logged.revealed]]

    # --- down ---

    def down(self) -> Expected:
        """Return the predicted bytes that all clients together receive in the sum, by stage."""
        sizes, index = self.sizes, self.index
        lengths = {"mask": self._query}
        if sizes.signed:
            signers = self.logged.frames_up.get("confirm", 0)
            lengths |= {"confirm": sizes.survivors(index), "reveal": sizes.confirmations(index, signers)}
        else:
            lengths |= {"reveal": sizes.survivors(index)}
        return {stage: self._down(stage, length) for stage, length in lengths.items()}

    @property
    def _query(self) -> int:
        """The length of `Query`. The payload's length is chosen to match the ledger's byte count."""
        asked, sizes = self.asked, self.sizes
        fixed = (asked["sum index"], asked["round"], asked["kind"])
        payload = max(asked["broadcast bytes"] - sizes.query(*fixed, 0), 0)
        # The header of the payload takes up to three bytes more than the header of an empty payload.
        return max(
            (sizes.query(*fixed, payload - more) for more in range(min(payload, 3) + 1)),
            key=lambda length: (length == asked["broadcast bytes"], length),
        )

    def _down(self, stage: str, length: int) -> int:
        """Return the predicted bytes that all clients receive in a stage with messages of `length` bytes. If
        the sum failed or was cut off in it, some messages may be the shorter `GroupClosed` instead."""
        frames = self.logged.frames_down
        last = max((stage for stage in STAGES if frames.get(stage)), key=STAGES.index, default="")
        failed = self.logged.count is None and stage == last
        return _settled(
            self.logged.bytes_down.get(stage, 0),
            frames=frames.get(stage, 0),
            usual=length,
            other=self.sizes.short(self.index),
            most=self.logged.invited if failed else 0,
        )


def _settled(measured: int, *, frames: int, usual: int, other: int, most: int, fixed: int = 0) -> int:
    """Predict the bytes of `frames` messages of length `usual`, up to `most` of which may have the length
    `other` instead, plus `fixed` bytes. Return `measured` if some number of these others explains it exactly,
    and otherwise the bytes without others."""
    possible = [fixed + (frames - k) * usual + k * other for k in range(min(frames, most) + 1)]
    if measured in possible:
        return measured
    return possible[0] if possible else fixed


_HEADER: Final = 37  # array header, version, type, a context of 32 bytes
_DIGEST: Final = 32
_SIGNATURE: Final = 64
_ID: Final = 4
_POSITION: Final = 4
_SHARE: Final = 33
_TAG: Final = 16  # of AES-GCM, of shares and of pair secrets; also the hash of a share
_WORD: Final = 8  # the hidden count, or a mask on it
_KEM_KEY: Final = 1184
_CIPHERTEXT: Final = 1088
_DEPOSIT: Final = 64


def blob_bytes(length: int) -> int:
    """Return the bytes that a byte string of `length` bytes takes in a message, with its header."""
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)


def number_bytes(value: int) -> int:
    """Return the bytes that the unsigned integer `value` takes in a message."""
    for most, length in ((7, 1), (8, 2), (16, 3), (32, 5)):
        if value < 1 << most:
            return length
    return 9


def bitmap_bytes(members: int) -> int:
    """Return the bytes of a bitmap with one bit per member."""
    return (members + 7) // 8


def packed_bytes(parts: Iterable[Mapping[str, Any]]) -> int:
    """Return the bytes of the packed vector in a masked input. `parts` has the sum's parts as in a ledger."""
    return sum((_width(part) * int(part["bits"]) + 7) // 8 for part in parts) + _WORD


def _width(part: Mapping[str, Any]) -> int:
    """Return how many elements are sent for a part: a part with noise and an L2 bound is padded to 2^k."""
    size: int = part["size"]
    rotated = part["noise"] is not None and part["bound"]["type"] == "L2"
    return 1 << (size - 1).bit_length() if rotated else size


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The lengths in bytes of the messages of one session. A property or method with the name of a message
    returns its length. The comments on the fields give their symbols in docs/protocol.md."""

    trust: str
    signed: bool  # whether clients sign, as they do under a malicious server
    key_agreement: str = KeyAgreement.X25519
    members: int  # n, the number of clients that advertised keys
    neighbours: int  # d, the number of neighbours of each of them; n - 1 on the complete graph
    threshold: int  # t
    sums: int  # L, the largest number of sums in the session
    seeds: int = 0  # R, the number of removable noise components of each sum

    # --- records ---

    @property
    def _sig(self) -> int:
        return _SIGNATURE if self.signed else 0

    @property
    def is_hybrid(self) -> bool:
        return self.key_agreement == KeyAgreement.HYBRID

    @property
    def _advert(self) -> int:
        kem = _KEM_KEY if self.is_hybrid else 0
        return 36 + kem + (64 + 32 * self.seeds) * self.sums + self._sig

    @property
    def _envelope(self) -> int:
        ciphertext = _CIPHERTEXT if self.is_hybrid else 0
        return ciphertext + (66 + 33 * self.seeds) * self.sums + _TAG

    @property
    def is_ring(self) -> bool:
        return self.neighbours != self.members - 1

    # --- set-up ---

    @property
    def invitation(self) -> int:
        registry_digest = blob_bytes(32 if self.signed else 0)
        terms = 1 + len(self.trust) + 1 + len(self.key_agreement) + number_bytes(self.sums)
        return 5 + terms + 34 + registry_digest + 34

    @property
    def advertisement(self) -> int:
        return _HEADER + blob_bytes(self._advert)

    @property
    def keys(self) -> int:
        """The length of the message with the clients' public keys: `KeyList`, or `Neighbours` on a ring."""
        if not self.is_ring:
            return _HEADER + number_bytes(self.threshold) + blob_bytes(self.members * self._advert)
        records = (self.neighbours + 1) * (self._advert + _POSITION)
        numbers, ids = number_bytes(self.members) + number_bytes(self.threshold), 0  # members are not named
        return _HEADER + numbers + 34 + blob_bytes(records) + blob_bytes(ids)

    @property
    def shares(self) -> int:
        tags = blob_bytes(_TAG * self.sums * (self.neighbours + 1))
        return _HEADER + blob_bytes(self.neighbours * self._envelope) + tags + 2 * blob_bytes(self._sig)

    def delivery(self, dealt: int) -> int:
        """Return the length of `Delivery`, which takes encrypted shares of `dealt` neighbours to a client."""
        return _HEADER + blob_bytes(dealt * (_ID + _DIGEST + self._envelope + self._sig))

    def deposit(self, accepted: int) -> int:
        """Return the length of `Deposit` of a client that accepted the shares of `accepted` neighbours."""
        return _HEADER + blob_bytes(_DEPOSIT * self.sums * accepted) + blob_bytes(self._sig)

    # --- a sum ---

    def query(self, index: int, round_number: int, kind: str, payload: int) -> int:
        name = len(kind) + (1 if len(kind) < 32 else 2)
        fixed = _HEADER + number_bytes(index) + number_bytes(round_number) + name
        return fixed + blob_bytes(bitmap_bytes(self.members)) + blob_bytes(payload)

    def masked(self, index: int, vector: int, asked: int) -> int:
        """Return the length of `MaskedInput` with a packed vector of `vector` bytes, of a client of whose
        neighbours `asked` were asked."""
        words = blob_bytes(_WORD * asked)
        return _HEADER + number_bytes(index) + blob_bytes(vector) + words + blob_bytes(self._sig)

    def survivors(self, index: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes(bitmap_bytes(self.members))

    def confirmation(self, index: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes(_SIGNATURE)

    def confirmations(self, index: int, signers: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes((_ID + _SIGNATURE) * signers)

    def reveal(self, index: int, roster: int, survivors: int, surplus: int) -> int:
        """Return the length of `Reveal` for sum `index`. It has a share for each of `roster` clients (the
        sender and its neighbours, as far as they were asked) and, for each of the `survivors` among them,
        `surplus` shares of seeds of noise to remove. It also has the hashes of their other shares."""
        revealed = roster + surplus * survivors
        dealers, hidden = bitmap_bytes(self.neighbours + 1), (2 + self.seeds) * roster - revealed
        fields = (dealers, _SHARE * revealed, _TAG * hidden, self._sig)
        return _HEADER + number_bytes(index) + sum(map(blob_bytes, fields))

    def short(self, index: int) -> int:
        """Return the length of a `Decline` message for sum `index`. `GroupClosed` has the same length."""
        return _HEADER + number_bytes(index)

    @property
    def leave(self) -> int:
        return _HEADER

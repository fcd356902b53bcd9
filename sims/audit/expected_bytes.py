"""Predicts the bytes of a session's set-up or of one sum from the lengths of the protocol's messages. `Sizes`
computes the length of every message by the formulas of docs/protocol.md, section 15. No message is encoded
here, so a comparison with measured bytes tests both the documentation and the program. The other inputs are
counts from the log: frames (messages) per stage, survivors, clients that revealed shares. In most stages, all
frames are messages of one type. In others, some clients may decline or leave, and the log does not count
these messages separately. Then every possible number of them is tried. If one of these numbers gives exactly
the measured bytes, these are the prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.audit.recorded_sum_spec import promise_of
from sims.audit.run_files import Row
from sims.records.sum_records import SessionRecord, SumRecord

STAGES: Final = tuple(stage.value for stage in Stage)
SET_UP: Final = STAGES[:2]
Expected = Mapping[str, int | None]  # bytes by stage; None if the records do not suffice for a prediction


def sizes_of(session: SessionRecord, trust: str) -> Sizes:
    """Return the message lengths of a session. They depend on its members, its graph and `trust`."""
    members = session.frames_up.get("advertise", 0)
    return Sizes(
        trust=trust,
        signed=Trust.parse(trust) is Trust.MALICIOUS,
        members=members,
        neighbours=session.neighbours or max(members - 1, 0),
        threshold=session.threshold or 0,
        sums=session.sums,
        seeds=session.seeds,
    )


def set_up(session: SessionRecord, sizes: Sizes) -> tuple[Expected, Expected]:
    """Return (sent, received): predicted bytes of all clients in set-up, by stage; None if unpredictable."""
    if session.failure is not None:
        return dict.fromkeys(SET_UP), dict.fromkeys(SET_UP)
    dealt = session.frames_up.get("share", 0)
    up = {"advertise": sizes.members * sizes.advertisement, "share": dealt * sizes.shares}
    down = {
        "advertise": session.frames_down.get("advertise", 0) * sizes.invitation,
        "share": _set_up_share_down(session, sizes, dealt),
    }
    return up, down


def _set_up_share_down(session: SessionRecord, sizes: Sizes, dealt: int) -> int | None:
    """Return the predicted bytes that all clients receive in the second stage of set-up. Each gets a key list
    and, unless it drops out in between, a delivery of others' shares. `dealt` clients sent shares. On a ring,
    return None if a client sent none: the log does not say whose deliveries lack its shares."""
    frames, all_dealt = session.frames_down.get("share", 0), dealt == sizes.members
    if sizes.is_ring and not all_dealt:
        return None
    delivered = sizes.delivery(sizes.neighbours if all_dealt else dealt - 1)
    if frames == 2 * dealt:
        return dealt * (sizes.keys + delivered)
    measured = session.bytes_down.get("share", 0)
    return _settled(measured, frames=frames, usual=sizes.keys, other=delivered, most=dealt)


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
        sizes, index = self.sizes, self.index
        refusals, masked = len(self.logged.refusals), self.logged.masked
        frames, measured = self.logged.frames_up, self.logged.bytes_up
        reveals = self._reveals()
        return {
            "mask": _settled(
                measured.get("mask", 0),
                fixed=masked * sizes.masked(index, packed_bytes(self.asked["parts"])),
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

    def _reveals(self) -> int | None:
        """Return the predicted bytes of all `Reveal` messages; None if the log has no neighbour counts."""
        around = self._around()
        if sum(clients for _asked, _survived, clients in around) != self.logged.revealed:
            return None
        promise = promise_of(self.asked["promise"])
        # The number of noise components that are removed for every survivor.
        surplus = 0 if promise is None else len(promise.surplus(self.logged.invited, self.logged.masked))
        return sum(
            clients * self.sizes.reveal(self.index, asked, survived, surplus)
            for asked, survived, clients in around
        )

    def _around(self) -> list[list[int]]:
        """Return rows (asked, survived, clients): for `clients` of the clients that revealed shares, `asked`
        clients of the neighbourhood (the client included) were asked, and `survived` sent inputs."""
        if self.sizes.is_ring:
            return [list(row) for row in self.logged.around]
        return [[self.logged.invited, self.logged.masked, self.logged.revealed]]

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
        the sum failed in this stage, some messages may be the shorter `GroupClosed` instead."""
        frames = self.logged.frames_down
        last = max((stage for stage in STAGES if frames.get(stage)), key=STAGES.index, default="")
        failed = self.logged.failure is not None and stage == last
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
_SIGNATURE: Final = 64
_ID: Final = 4
_POSITION: Final = 4
_SHARE: Final = 33
_TAG: Final = 16
_HIDDEN_COUNT: Final = 8


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
    return sum((_width(part) * int(part["bits"]) + 7) // 8 for part in parts) + _HIDDEN_COUNT


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
    def _advert(self) -> int:
        return 36 + (64 + 32 * self.seeds) * self.sums + self._sig

    @property
    def _envelope(self) -> int:
        return (66 + 33 * self.seeds) * self.sums + _TAG

    @property
    def is_ring(self) -> bool:
        return self.neighbours != self.members - 1

    # --- set-up ---

    @property
    def invitation(self) -> int:
        registry_digest = blob_bytes(32 if self.signed else 0)
        return 5 + 1 + len(self.trust) + number_bytes(self.sums) + 34 + registry_digest + 34

    @property
    def advertisement(self) -> int:
        return _HEADER + blob_bytes(self._advert)

    @property
    def keys(self) -> int:
        """The length of the message with the clients' public keys: `KeyList`, or `Neighbours` on a ring."""
        if not self.is_ring:
            return _HEADER + number_bytes(self.threshold) + blob_bytes(self.members * self._advert)
        records = (self.neighbours + 1) * (self._advert + _POSITION)
        return _HEADER + number_bytes(self.members) + number_bytes(self.threshold) + 34 + blob_bytes(records)

    @property
    def shares(self) -> int:
        return _HEADER + blob_bytes(self.neighbours * self._envelope) + blob_bytes(self._sig)

    def delivery(self, dealt: int) -> int:
        """Return the length of `Delivery`, which takes encrypted shares of `dealt` neighbours to a client."""
        return _HEADER + blob_bytes(dealt * (_ID + self._envelope + self._sig))

    # --- a sum ---

    def query(self, index: int, round_number: int, kind: str, payload: int) -> int:
        name = len(kind) + (1 if len(kind) < 32 else 2)
        fixed = _HEADER + number_bytes(index) + number_bytes(round_number) + name
        return fixed + blob_bytes(bitmap_bytes(self.members)) + blob_bytes(payload)

    def masked(self, index: int, vector: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes(vector)

    def survivors(self, index: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes(bitmap_bytes(self.members))

    def confirmation(self, index: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes(_SIGNATURE)

    def confirmations(self, index: int, signers: int) -> int:
        return _HEADER + number_bytes(index) + blob_bytes((_ID + _SIGNATURE) * signers)

    def reveal(self, index: int, roster: int, survivors: int, surplus: int) -> int:
        """Return the length of `Reveal` for sum `index`. It has a share for each of `roster` asked neighbours
        and, for each of the `survivors` among them, `surplus` shares of seeds of noise to remove."""
        dealers = blob_bytes(bitmap_bytes(self.neighbours + 1))
        return _HEADER + number_bytes(index) + dealers + blob_bytes(_SHARE * (roster + surplus * survivors))

    def short(self, index: int) -> int:
        """Return the length of a `Decline` message for sum `index`. `GroupClosed` has the same length."""
        return _HEADER + number_bytes(index)

    @property
    def leave(self) -> int:
        return _HEADER

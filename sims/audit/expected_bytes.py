"""The bytes that one set-up, or one sum, takes by the protocol: a closed form, from counts alone.

`Sizes` is section 15 of docs/protocol.md as arithmetic: the length of every message. No message is encoded
here, so a comparison with counted bytes tests both the documentation and the program. The other inputs are
counts of events: frames per stage, survivors, clients that revealed. In most stages all frames have one kind.
If two kinds are possible (clients that decline, clients that leave), some number of each must explain the
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from secagg.local import Stage
from secagg.noise_assumptions import NoiseAssumptions
from secagg.thresholds import Trust
from sims.audit.run_files import Row
from sims.records.sums import SessionRecord, SumRecord

STAGES: Final = tuple(stage.value for stage in Stage)
SET_UP: Final = STAGES[:2]
Expected = Mapping[str, int | None]  # bytes by stage; None where the facts do not suffice


def sizes_of(session: SessionRecord, trust: str) -> Sizes:
    """Return the frame lengths of a session."""
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
    """Return the bytes up and down of a session's set-up; None if the set-up failed."""
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
    """Return the bytes of key lists and deliveries. A client may die between the two.

    None on a ring if a client has not dealt shares: then the result depends on its neighbours.
    """
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
    """A sum that was asked, according to the ledger and the log, with the bytes it should take."""

    asked: Row
    logged: SumRecord
    sizes: Sizes

    @property
    def index(self) -> int:
        assert self.logged.index is not None  # a client was asked
        return self.logged.index

    # --- up ---

    def up(self) -> Expected:
        sizes, index = self.sizes, self.index
        refusals, masked = len(self.logged.refusals), self.logged.masked
        frames, measured = self.logged.frames_up, self.logged.bytes_up
        reveals = self._reveals()
        return {
            "mask": _settled(
                measured.get("mask", 0),
                fixed=masked * sizes.masked(index, packed(self.asked["parts"])),
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
        """None on a ring if the log has no counts of neighbours."""
        around = self._around()
        if sum(clients for _asked, _survived, clients in around) != self.logged.revealed:
            return None
        promise = promise_of(self.asked["promise"])
        # The components of every survivor's noise that are removed.
        surplus = 0 if promise is None else len(promise.surplus(self.logged.invited, self.logged.masked))
        return sum(
            clients * self.sizes.reveal(self.index, asked, survived, surplus)
            for asked, survived, clients in around
        )

    def _around(self) -> list[list[int]]:
        """Return (asked, survived, clients with that many) around each client; on a ring, by the log."""
        if self.sizes.is_ring:
            return [list(row) for row in self.logged.around]
        return [[self.logged.invited, self.logged.masked, self.logged.revealed]]

    # --- down ---

    def down(self) -> Expected:
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
        """Return the bytes of the query. Its payload is the algorithm's, of the length in the ledger."""
        asked, sizes = self.asked, self.sizes
        fixed = (asked["sum index"], asked["round"], asked["kind"])
        payload = max(asked["broadcast bytes"] - sizes.query(*fixed, 0), 0)
        # The length of the payload's own length is in between: up to three bytes more than that of nothing.
        return max(
            (sizes.query(*fixed, payload - more) for more in range(min(payload, 3) + 1)),
            key=lambda length: (length == asked["broadcast bytes"], length),
        )

    def _down(self, stage: str, length: int) -> int:
        """Return the bytes of one stage. The stage in which a sum failed has another frame."""
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
    """Return the bytes of `frames` of the usual length, up to `most` of them of another, plus `fixed`."""
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


def blob(length: int) -> int:
    """Return the length of a byte string with its header."""
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)


def number(value: int) -> int:
    """Return the length of an unsigned integer."""
    for most, length in ((7, 1), (8, 2), (16, 3), (32, 5)):
        if value < 1 << most:
            return length
    return 9


def bitmap(members: int) -> int:
    return (members + 7) // 8


def packed(parts: Iterable[Mapping[str, Any]]) -> int:
    """Return the length of the vector of a masked input, from the parts as a ledger describes them."""
    return sum((_width(part) * int(part["bits"]) + 7) // 8 for part in parts) + _HIDDEN_COUNT


def _width(part: Mapping[str, Any]) -> int:
    """Return the padded size: noisy vectors of a bounded norm are rotated and padded to a power of two."""
    size: int = part["size"]
    rotated = part["noise"] is not None and part["bound"]["type"] == "L2"
    return 1 << (size - 1).bit_length() if rotated else size


def promise_of(described: Mapping[str, Any] | None) -> NoiseAssumptions | None:
    """Return the promise of a sum's noise, from its description in a ledger."""
    return None if described is None else NoiseAssumptions(**described)


def variance_of(part: Mapping[str, Any]) -> Fraction | None:
    """Return the variance of the noise of a part as a ledger describes it, in grid points squared."""
    return None if part["noise"] is None else Fraction(part["noise"]["variance"])


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Lengths of the frames of one session."""

    trust: str
    signed: bool
    members: int  # n, clients that advertised keys
    neighbours: int  # d, of each of them; n - 1 on the complete graph
    threshold: int
    sums: int  # L, most sums of the session
    seeds: int = 0  # R, removable components of noise of any of its sums

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
    def _parcel(self) -> int:
        return _ID + self._envelope + self._sig

    @property
    def is_ring(self) -> bool:
        return self.neighbours != self.members - 1

    # --- set-up ---

    @property
    def invitation(self) -> int:
        return 5 + 1 + len(self.trust) + number(self.sums) + 34 + blob(32 if self.signed else 0) + 34

    @property
    def advertisement(self) -> int:
        return _HEADER + blob(self._advert)

    @property
    def keys(self) -> int:
        """The length of `KeyList`, or of `Neighbours` on a ring."""
        if not self.is_ring:
            return _HEADER + number(self.threshold) + blob(self.members * self._advert)
        records = (self.neighbours + 1) * (self._advert + _POSITION)
        return _HEADER + number(self.members) + number(self.threshold) + 34 + blob(records)

    @property
    def shares(self) -> int:
        return _HEADER + blob(self.neighbours * self._envelope) + blob(self._sig)

    def delivery(self, dealt: int) -> int:
        """Return the length with the envelopes of `dealt` neighbours."""
        return _HEADER + blob(dealt * self._parcel)

    # --- a sum ---

    def query(self, index: int, round_number: int, kind: str, payload: int) -> int:
        name = len(kind) + (1 if len(kind) < 32 else 2)
        fixed = _HEADER + number(index) + number(round_number) + name
        return fixed + blob(bitmap(self.members)) + blob(payload)

    def masked(self, index: int, vector: int) -> int:
        return _HEADER + number(index) + blob(vector)

    def survivors(self, index: int) -> int:
        return _HEADER + number(index) + blob(bitmap(self.members))

    def confirmation(self, index: int) -> int:
        return _HEADER + number(index) + blob(_SIGNATURE)

    def confirmations(self, index: int, signers: int) -> int:
        return _HEADER + number(index) + blob((_ID + _SIGNATURE) * signers)

    def reveal(self, index: int, roster: int, survivors: int, surplus: int) -> int:
        """Return the length with shares for `roster` clients, and `surplus` seeds for each survivor."""
        dealers = blob(bitmap(self.neighbours + 1))
        return _HEADER + number(index) + dealers + blob(_SHARE * (roster + surplus * survivors))

    def short(self, index: int) -> int:
        """Return the length of `Decline` and `GroupClosed`."""
        return _HEADER + number(index)

    @property
    def leave(self) -> int:
        return _HEADER

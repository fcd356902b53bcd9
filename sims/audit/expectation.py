"""How many bytes the protocol says that one set-up, or one sum, takes: a closed form, from counts alone.

Counts are facts of what happened: how many frames there were in a stage, who survived, who revealed. Lengths
are arithmetic (`sims.audit.sizes`). In most stages all frames are of one kind. Where there can be two, such
as of clients that decline and of some that leave, there must be a number of either that makes up the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from secagg.local import Stage
from secagg.thresholds import Trust
from sims.audit.evidence import Row
from sims.audit.sizes import Sizes, packed, promise_of
from sims.records.sums import SessionRecord, SumRecord

STAGES: Final = tuple(stage.value for stage in Stage)
SET_UP: Final = STAGES[:2]
Expected = Mapping[str, int | None]  # bytes by stage; None where the facts do not suffice


def sizes_of(session: SessionRecord, trust: str) -> Sizes:
    """What a session's frames are long."""
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
    """Bytes up and down of a session's set-up. Of one that failed, nobody knows how far it came."""
    if session.failure is not None:
        return dict.fromkeys(SET_UP), dict.fromkeys(SET_UP)
    dealt = session.frames_up.get("share", 0)
    up = {"advertise": sizes.members * sizes.advertisement, "share": dealt * sizes.shares}
    down = {
        "advertise": session.frames_down.get("advertise", 0) * sizes.invitation,
        "share": _told_in_set_up(session, sizes, dealt),
    }
    return up, down


def _told_in_set_up(session: SessionRecord, sizes: Sizes, dealt: int) -> int | None:
    """Whoever hears the keys deals shares, and gets those of the others, unless it is killed in between.

    None on a ring where somebody has not dealt: then it matters whose neighbour that was.
    """
    told, everybody = session.frames_down.get("share", 0), dealt == sizes.members
    if sizes.is_ring and not everybody:
        return None
    delivered = sizes.delivery(sizes.neighbours if everybody else dealt - 1)
    if told == 2 * dealt:
        return dealt * (sizes.keys + delivered)
    measured = session.bytes_down.get("share", 0)
    return _settled(measured, frames=told, usual=sizes.keys, other=delivered, most=dealt)


@dataclass(frozen=True)
class OneSum:
    """A sum that somebody was asked for, as the ledger and as the log have it."""

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
        """None on a ring where nobody counted who was around whom."""
        around = self._around()
        if sum(clients for _asked, _survived, clients in around) != self.logged.revealed:
            return None
        surplus = self._surplus
        return sum(
            clients * self.sizes.reveal(self.index, asked, survived, surplus)
            for asked, survived, clients in around
        )

    def _around(self) -> list[list[int]]:
        """On the complete graph, everybody is around everybody; on a ring, the server counts."""
        if self.sizes.is_ring:
            return [list(row) for row in self.logged.around]
        return [[self.logged.invited, self.logged.masked, self.logged.revealed]]

    @property
    def _surplus(self) -> int:
        """Components of every survivor's noise that are removed."""
        promise = promise_of(self.asked["promise"])
        return 0 if promise is None else len(promise.surplus(self.logged.invited, self.logged.masked))

    # --- down ---

    def down(self) -> Expected:
        sizes, index = self.sizes, self.index
        lengths = {"mask": self._query}
        if sizes.signed:
            signers = self.logged.frames_up.get("confirm", 0)
            lengths |= {
                "confirm": sizes.survivors(index),
                "reveal": sizes.confirmations(index, signers),
            }
        else:
            lengths |= {"reveal": sizes.survivors(index)}
        return {stage: self._told(stage, length) for stage, length in lengths.items()}

    @property
    def _query(self) -> int:
        """Its payload is the algorithm's, and as long as the ledger says."""
        asked, sizes = self.asked, self.sizes
        fixed = (asked["sum index"], asked["round"], asked["kind"])
        payload = max(asked["broadcast bytes"] - sizes.query(*fixed, 0), 0)
        # The length of the payload's own length is in between: up to three bytes more than that of nothing.
        return max(
            (sizes.query(*fixed, payload - more) for more in range(min(payload, 3) + 1)),
            key=lambda length: (length == asked["broadcast bytes"], length),
        )

    def _told(self, stage: str, length: int) -> int:
        """A sum that fails is closed by another frame, in the stage in which it failed."""
        frames = self.logged.frames_down
        failed = self.logged.failure is not None and stage == self._last
        return _settled(
            self.logged.bytes_down.get(stage, 0),
            frames=frames.get(stage, 0),
            usual=length,
            other=self.sizes.short(self.index),
            most=self.logged.invited if failed else 0,
        )

    @property
    def _last(self) -> str:
        """The stage to which the sum came."""
        frames = self.logged.frames_down
        return max((stage for stage in STAGES if frames.get(stage)), key=STAGES.index, default="")


def _settled(measured: int, *, frames: int, usual: int, other: int, most: int, fixed: int = 0) -> int:
    """Bytes of `frames` of the usual length, but for up to `most` of another, beside what is fixed."""
    possible = [fixed + (frames - k) * usual + k * other for k in range(min(frames, most) + 1)]
    if measured in possible:
        return measured
    return possible[0] if possible else fixed

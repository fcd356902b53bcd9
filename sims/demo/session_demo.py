"""The demo's session: its sums, a sum that fails, a server that cheats, and what each of them reveals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg import LocalSession, Preflight, Stage, Total, Trust, local_machines, preflight
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.encoding import Encoding
from secagg.errors import GroupChanged, SumFailed
from secagg.events import Asked, SessionReady, SumReleased
from secagg.params import SessionParams
from secagg.ring import Residues
from sims.demo.simulated_clients import (
    BITS,
    MEAN,
    MEDIAN,
    Absences,
    Histogram,
    SimulatedClients,
    Vector,
    demo_table,
)

SHOWN: Final = 4  # elements of a vector that fit on the screen
_ROUND: Final = 0

Tick: TypeAlias = Callable[[], None]  # called for each frame that the server receives


@dataclass(frozen=True)
class DemoSetting:
    """What the user chose. `seed` is that of the simulated data and drop-outs only."""

    clients: int
    dim: int
    sums: int
    trust: Trust
    seed: int

    @property
    def corrupt(self) -> int:
        return self.clients // 10


@dataclass(frozen=True, eq=False)
class MaskedExample:
    """One client's input as it is, and as the server saw it."""

    member: int
    values: Vector
    residues: Residues
    seen: Residues


@dataclass(frozen=True, eq=False)
class SumResult:
    """One sum: who was in it, what came out, and how far that is from the plain sum."""

    kind: str
    total: Total
    contributors: tuple[int, ...]
    before_masking: frozenset[int]
    before_revealing: frozenset[int]
    first: Vector
    error: float
    step: float  # of the grid on which clients round

    @property
    def steps(self) -> float:
        return self.error / self.step

    @property
    def exact(self) -> bool:
        """Each contributor rounds by less than one step, so the total is off by less than this many."""
        return self.steps < len(self.contributors)


@dataclass(frozen=True)
class StageTraffic:
    """Mean bytes of a client by stage; those of the sums are per sum."""

    up: Counter[Stage]
    down: Counter[Stage]


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Everything the demo has to tell."""

    setting: DemoSetting
    outlook: Preflight
    glimpse: MaskedExample
    masked: Histogram
    true: Histogram
    sums: tuple[SumResult, ...]
    setup: StageTraffic
    each_sum: StageTraffic
    vanished: int
    failure: SumFailed | None
    left_out: int
    refuser: int
    refusal: GroupChanged | None

    @property
    def as_promised(self) -> bool:
        """Totals are right, the failed sum released nothing, and the cheating was refused."""
        totals = all(each.exact for each in self.sums)
        return totals and self.failure is not None and self.refusal is not None


def frames(setting: DemoSetting) -> int:
    """About how many frames the server receives: the length of a progress bar."""
    stages = 3 if setting.trust is Trust.MALICIOUS else 2
    return setting.clients * (2 + stages * setting.sums)


def run_session(setting: DemoSetting, tick: Tick) -> DemoResult:
    """Run the session. Raises `LocalError` where the setting cannot work."""
    return _DemoSession(setting, tick).run()


class _DemoSession:
    """Plays all parts: the people, the honest server, and at last the cheating one."""

    def __init__(self, setting: DemoSetting, tick: Tick) -> None:
        self._setting = setting
        self._tick = tick
        self._table = demo_table(setting.dim, setting.sums)
        # Two sums beyond those that succeed: one will fail, one is never answered.
        planned = setting.sums + 2
        params = SessionParams(trust=setting.trust, corrupt=setting.corrupt, dropout=0.1, sums=planned)
        self._outlook = preflight(self._table, setting.clients, params)
        server, self._clients = local_machines(
            table=self._table, params=params, members=range(setting.clients)
        )
        self._people = SimulatedClients(clients=setting.clients, dim=setting.dim, seed=setting.seed)
        self._vanished = setting.clients - self._outlook.quorum + 1
        self._absences: Absences = self._people.absences(setting.sums, self._vanished)
        self._asking = -1
        self._inputs: dict[int, bytes] = {}  # masked, of the first sum
        self._session = LocalSession(
            server, self._clients, self._answer, absent=self._absent, observer=self._observe
        )

    def run(self) -> DemoResult:
        session = self._session
        session.open()
        setup = self._traffic(StageTraffic(Counter(), Counter()), 1)
        before = self._snapshot()
        sums = self._sums()
        each_sum = self._traffic(before, len(sums))
        failure = self._fail()
        left_out, refuser, refusal = self._cheat(sums[-1])
        session.end()
        masked, true = self._residues(sums[0])
        return DemoResult(
            setting=self._setting,
            outlook=self._outlook,
            glimpse=self._glimpse(sums[0], masked, true),
            masked=Histogram.of(np.concatenate(list(masked.values())), BITS),
            true=Histogram.of(np.concatenate(list(true.values())), BITS),
            sums=tuple(sums),
            setup=setup,
            each_sum=each_sum,
            vanished=self._vanished,
            failure=failure,
            left_out=left_out,
            refuser=refuser,
            refusal=refusal,
        )

    # --- what the session calls ---

    def _answer(self, member: int, asked: Asked) -> dict[str, Vector]:
        return self._people.answer(member, asked.kind, asked.payload)

    def _absent(self, member: int, stage: Stage, number: int) -> bool:
        return member in self._absences.get((number, stage), ())

    def _observe(self, member: int, frame: bytes) -> None:
        self._tick()
        if self._asking == 0:
            message = m.decode(frame, sender=member, limit=len(frame))
            if isinstance(message, m.MaskedInput):
                self._inputs[member] = message.data

    # --- sums ---

    def _sums(self) -> list[SumResult]:
        """A mean, then the steps of a geometric median, each from where the last one ended."""
        stories = [self._sum(MEAN, b"")]
        centre = np.zeros(self._setting.dim)
        for _ in range(1, self._setting.sums):
            story = self._sum(MEDIAN, centre.astype("<f8").tobytes())
            stories.append(story)
            centre = centre + story.total["influence"] / story.total["weight"]
        return stories

    def _sum(self, kind: str, payload: bytes) -> SumResult:
        self._asking += 1
        total = self._session.ask(kind, payload, round_number=_ROUND)
        released = self._session.events[-1]
        assert isinstance(released, SumReleased)
        plain = self._people.plain_sum(released.contributors, kind, payload)
        part = self._table[kind].parts[0]
        return SumResult(
            kind=kind,
            total=total,
            contributors=released.contributors,
            before_masking=self._absences.get((self._asking, Stage.MASK), frozenset()),
            before_revealing=self._absences.get((self._asking, Stage.REVEAL), frozenset()),
            first=total[part.name][:SHOWN].astype(np.float64),
            error=float(np.abs(total[part.name] - plain[part.name]).max()),
            step=1 / Encoding(self._table[kind], cohort=self._setting.clients).scale(part),
        )

    def _fail(self) -> SumFailed | None:
        """One more sum, which too many leave: why nothing was released, or None if something was."""
        self._asking += 1
        try:
            self._session.ask(MEAN, b"once more", round_number=_ROUND + 1)
        except SumFailed as failure:
            return None if self._released(self._asking) else failure
        return None

    def _released(self, number: int) -> bool:
        events = self._session.events
        return any(isinstance(event, SumReleased) and event.sum_index == number for event in events)

    def _cheat(self, last: SumResult) -> tuple[int, int, GroupChanged | None]:
        """Ask one client for the median's next sum without another: the difference would be its vector."""
        ready = next(event for event in self._session.events if isinstance(event, SessionReady))
        left_out, refuser = [k for k in last.contributors if k not in last.before_revealing][:2]
        roster = pack_positions((k for k in last.contributors if k != left_out), self._setting.clients)
        payload = np.ones(self._setting.dim).astype("<f8").tobytes()
        query = m.Query(ready.session, self._asking + 1, _ROUND, MEDIAN, roster, payload)
        try:
            self._clients[refuser].receive(query.encode())
        except GroupChanged as refusal:
            return left_out, refuser, refusal
        return left_out, refuser, None

    # --- what was seen ---

    def _residues(self, first: SumResult) -> tuple[dict[int, Residues], dict[int, Residues]]:
        """The masked update of each contributor to the first sum, and the one behind the mask.

        Clients round at random and keep the direction to themselves, so the latter is right to within one.
        """
        encoding = Encoding(self._table[MEAN], cohort=self._setting.clients)
        masked: dict[int, Residues] = {}
        true: dict[int, Residues] = {}
        for member in first.contributors:
            parts = encoding.unpack(self._inputs[member])
            masked[member] = parts[0]
            true[member] = _nearest(self._values(member) / first.step)
        return masked, true

    def _values(self, member: int) -> NDArray[np.float64]:
        return self._people.answer(member, MEAN, b"")["update"]

    def _glimpse(
        self, first: SumResult, masked: dict[int, Residues], true: dict[int, Residues]
    ) -> MaskedExample:
        member = first.contributors[len(first.contributors) // 2]
        values = self._values(member)[:SHOWN]
        return MaskedExample(member, values, true[member][:SHOWN], masked[member][:SHOWN])

    # --- bytes ---

    def _snapshot(self) -> StageTraffic:
        return StageTraffic(Counter(self._session.bytes_up), Counter(self._session.bytes_down))

    def _traffic(self, before: StageTraffic, times: int) -> StageTraffic:
        """Bytes since `before`, per client and time."""
        now, each = self._snapshot(), self._setting.clients * times
        up = Counter({stage: count // each for stage, count in (now.up - before.up).items()})
        down = Counter({stage: count // each for stage, count in (now.down - before.down).items()})
        return StageTraffic(up, down)


def _nearest(scaled: NDArray[np.float64]) -> Residues:
    residues: Residues = (np.rint(scaled).astype(np.int64) % (1 << BITS)).astype(np.uint32)
    return residues

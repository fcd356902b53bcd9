"""Runs one secure session for the demo: some sums, a sum that fails, and a server that cheats. The vectors
and drop-outs of clients are drawn from a seed. Keys and masks are new in every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from secagg import (
    L2,
    Count,
    LInf,
    LocalSession,
    Part,
    Stage,
    SumSpec,
    Table,
    Trust,
    local_machines,
    preflight,
)
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.errors import GroupChanged, SumFailed
from secagg.events import Asked, SessionReady, SumReleased
from secagg.input_encoding import Encoding
from secagg.residue_packing import Residues
from secagg.session_params import SessionParams
from sims.demo.session_result_and_text import (
    MEAN,
    MEDIAN,
    SHOWN,
    DemoResult,
    DemoSetting,
    Histogram,
    MaskedExample,
    StageTraffic,
    SumResult,
    Vector,
)

_ROUND: Final = 0

Tick: TypeAlias = Callable[[], None]  # called for each frame that the server receives


def expected_frames(setting: DemoSetting) -> int:
    """Return about how many messages the server receives in the session, for the length of a progress bar."""
    stages = 3 if setting.trust is Trust.MALICIOUS else 2
    return setting.clients * (2 + stages * setting.sums)


def run_session(setting: DemoSetting, tick: Tick) -> DemoResult:
    """Run the demo's session of secure sums and return its result. `tick` is called for each message to the
    server. Raise `LocalError` if a session with this `setting` is impossible."""
    return _DemoSession(setting, tick).run()


class _DemoSession:
    """Runs all parties of the demo's session in this process: the simulated clients and the server."""

    def __init__(self, setting: DemoSetting, tick: Tick) -> None:
        self._setting = setting
        self._tick = tick
        self._table = demo_table(setting.dim, setting.sums)
        # Two more sums are planned: one fails for lack of clients, and one is the query of `_cheat`.
        planned = setting.sums + 2
        params = SessionParams(trust=setting.trust, corrupt=setting.corrupt, dropout=0.1, sums=planned)
        self._session_plan = preflight(self._table, setting.clients, params)
        server, self._clients = local_machines(
            table=self._table, params=params, members=range(setting.clients)
        )
        self._simulated = SimulatedClients(clients=setting.clients, dim=setting.dim, seed=setting.seed)
        self._vanished = setting.clients - self._session_plan.quorum + 1
        self._absences: Absences = self._simulated.absences(setting.sums, self._vanished)
        self._asking = -1
        self._inputs: dict[int, bytes] = {}  # masked inputs of the first sum, by client
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
        member = sums[0].contributors[len(sums[0].contributors) // 2]
        values = self._values(member)[:SHOWN]
        return DemoResult(
            setting=self._setting,
            session_plan=self._session_plan,
            masked_example=MaskedExample(member, values, true[member][:SHOWN], masked[member][:SHOWN]),
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

    # --- callbacks of the session ---

    def _answer(self, member: int, asked: Asked) -> dict[str, Vector]:
        return self._simulated.answer(member, asked.kind, asked.payload)

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
        """Ask for a mean, then for the steps of a geometric median, each of which starts at the estimate of
        the last one. Return the results of all sums."""
        results = [self._sum(MEAN, b"")]
        centre = np.zeros(self._setting.dim)
        for _ in range(1, self._setting.sums):
            result = self._sum(MEDIAN, centre.astype("<f8").tobytes())
            results.append(result)
            centre = centre + result.total["influence"] / result.total["weight"]
        return results

    def _sum(self, kind: str, payload: bytes) -> SumResult:
        self._asking += 1
        total = self._session.ask(kind, payload, round_number=_ROUND)
        released = self._session.events[-1]
        assert isinstance(released, SumReleased)
        plain = self._simulated.plain_sum(released.contributors, kind, payload)
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
        """Ask for a sum that too many clients leave. Return its failure; None if it released a total."""
        self._asking += 1
        try:
            self._session.ask(MEAN, b"once more", round_number=_ROUND + 1)
        except SumFailed as failure:
            sums = (event.sum_index for event in self._session.events if isinstance(event, SumReleased))
            return None if self._asking in sums else failure
        return None

    def _cheat(self, last: SumResult) -> tuple[int, int, GroupChanged | None]:
        """Query one client for the next sum of the median, with a roster (list of clients) that lacks another
        client. The difference to the last total would reveal the vector of the one that is left out. Return
        that client, the client that received the query, and its refusal, or None if it did not refuse."""
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

    # --- masked and true inputs ---

    def _residues(self, first: SumResult) -> tuple[dict[int, Residues], dict[int, Residues]]:
        """Return (masked, true): for each contributor to the first sum, the residues of its update with and
        without its masks. True residues are rounded to the nearest grid point here. Clients round up or down
        at random, so a residue that a client masked may differ by one."""
        encoding = Encoding(self._table[MEAN], cohort=self._setting.clients)
        masked: dict[int, Residues] = {}
        true: dict[int, Residues] = {}
        for member in first.contributors:
            masked[member] = encoding.unpack(self._inputs[member])[0]
            grid_points = np.rint(self._values(member) / first.step).astype(np.int64)
            true[member] = (grid_points % (1 << BITS)).astype(np.uint32)
        return masked, true

    def _values(self, member: int) -> NDArray[np.float64]:
        return self._simulated.answer(member, MEAN, b"")["update"]

    # --- bytes ---

    def _snapshot(self) -> StageTraffic:
        return StageTraffic(Counter(self._session.bytes_up), Counter(self._session.bytes_down))

    def _traffic(self, before: StageTraffic, times: int) -> StageTraffic:
        """Return the bytes of each stage since the snapshot `before`, per client, divided by `times`."""
        now, each = self._snapshot(), self._setting.clients * times
        up = Counter({stage: count // each for stage, count in (now.up - before.up).items()})
        down = Counter({stage: count // each for stage, count in (now.down - before.down).items()})
        return StageTraffic(up, down)


BITS: Final = 32
_CAP: Final = 1000  # the largest number of examples of a client
_NU: Final = 0.1  # smoothing of the geometric median

Absences: TypeAlias = Mapping[tuple[int, Stage], frozenset[int]]  # (sum, stage) -> the absent clients


def demo_table(dim: int, steps: int) -> Table:
    """Return the specifications of two kinds of sums: a mean of vectors of length `dim`, and a step of a
    geometric median, of which a round has at most `steps`."""
    mean = SumSpec(
        parts=(
            Part(name="update", size=dim, bits=BITS, bound=LInf(1.0)),
            Part(name="examples", size=1, bits=24, bound=Count(_CAP)),
        )
    )
    median = SumSpec(
        parts=(
            Part(name="influence", size=dim, bits=BITS, bound=L2(1.0)),
            Part(name="weight", size=1, bits=BITS, bound=LInf(1 / _NU)),
        ),
        times=steps,
    )
    return Table({MEAN: mean, MEDIAN: median})


class SimulatedClients:
    """Clients that each have a vector of `dim` elements and a number of examples, drawn from `seed`."""

    def __init__(self, *, clients: int, dim: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        centre = self._rng.uniform(-0.5, 0.5, dim)
        noise = self._rng.normal(0, 0.15, (clients, dim))
        self.vectors: NDArray[np.float64] = np.clip(centre + noise, -1, 1)
        self.examples = self._rng.integers(1, _CAP, clients, endpoint=True)

    def answer(self, member: int, kind: str, payload: bytes) -> dict[str, Vector]:
        """Return what client `member` adds to a sum, by part name. For a step of the median, `payload` is the
        current estimate of the median."""
        if kind == MEAN:
            examples = self.examples[member : member + 1]
            return {"update": self.vectors[member] * (examples / _CAP), "examples": examples}
        residual = self.vectors[member] - np.frombuffer(payload, "<f8")
        distance = max(_NU, float(np.linalg.norm(residual)))
        return {"influence": residual / distance, "weight": np.array([1 / distance])}

    def plain_sum(self, members: Collection[int], kind: str, payload: bytes) -> dict[str, Vector]:
        """Return the sum of what `members` add, by part name: without rounding or masks, for comparison."""
        answers = [self.answer(member, kind, payload) for member in members]
        return {name: np.sum([answer[name] for answer in answers], axis=0) for name in answers[0]}

    def absences(self, sums: int, too_many: int) -> Absences:
        """Draw which clients are absent from which stage of which sum, and return them by (sum, stage). Some
        are absent from the mean (sum 0) and from the first and last step of the median. `too_many` are absent
        from sum number `sums`, which therefore fails. No client drops out between two steps of the median,
        because that would end it."""
        few, fewer = max(1, len(self.vectors) // 16), max(1, len(self.vectors) // 25)
        rows = {
            **self._absent(0, mask=few, reveal=fewer),
            **self._absent(1, mask=few, reveal=fewer if sums == 2 else 0),
            **self._absent(sums, mask=too_many),
        }
        if sums > 2:
            gone = rows[1, Stage.MASK]
            rows |= self._absent(sums - 1, reveal=fewer, never=gone)
        return rows

    def _absent(
        self, number: int, *, mask: int = 0, reveal: int = 0, never: Collection[int] = ()
    ) -> dict[tuple[int, Stage], frozenset[int]]:
        """Draw clients that leave sum `number`, none of them in `never`: `mask` clients before masking, and
        `reveal` clients after it, before they reveal shares. Return them by (sum, stage)."""
        present = [member for member in range(len(self.vectors)) if member not in never]
        drawn = [int(member) for member in self._rng.choice(present, mask + reveal, replace=False)]
        return {
            (number, Stage.MASK): frozenset(drawn[:mask]),
            (number, Stage.REVEAL): frozenset(drawn[mask:]),
        }


def watch(setting: DemoSetting, console: Console) -> DemoResult:
    """Run the demo's session of secure sums and return its result, with a progress bar on a terminal."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        text = f"{setting.clients} clients, {setting.sums} sums"
        task = progress.add_task(text, total=expected_frames(setting))
        return run_session(setting, lambda: progress.advance(task))

"""CPU time per client and sum, split by primitive, under both trust levels.

Two sessions are run under each trust level with real machines: a *recorded* one, which tells what one
client and the server call how often and at which sizes, and a *timed* one, without anything but a clock
around the machines' public calls. Before and after each phase, its recorded calls are replayed bare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.cpu_breakdown import Balance, Replays
from benchmarks.meter import SERVER, Phase, Recorder, Stopwatch
from secagg import L2, LocalSession, Part, SumSpec, Table, Trust, local_machines
from secagg.events import Asked
from secagg.graph_parameters import GraphChoice
from secagg.session_params import SessionParams

KIND: Final = "update"
PART: Final = "update"
DROPOUT: Final = Fraction(1, 5)  # what the threshold leaves room for; nobody really leaves

OnProgress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What is summed, and among how many."""

    clients: int
    dim: int
    sums: int
    bits: int

    @property
    def corrupt(self) -> int:
        return self.clients // 10

    def table(self) -> Table:
        update = Part(name=PART, size=self.dim, bits=self.bits, bound=L2(1.0))
        return Table({KIND: SumSpec(parts=(update,))})


@dataclass(frozen=True)
class Traffic:
    """The mean bytes of one client: in set-up, and in one sum."""

    setup_up: int
    setup_down: int
    sum_up: int
    sum_down: int


@dataclass(frozen=True)
class Outcome:
    """The bytes of a session, and the distance of its totals from the plain sums of unrounded vectors."""

    traffic: Traffic
    error: float  # of the worst coordinate in any of the sums


@dataclass(frozen=True)
class PrimitivesReport:
    """The balances of client and server by trust level, and what their sessions sent and released."""

    setting: Setting
    balances: tuple[Balance, ...]
    outcomes: Mapping[Trust, Outcome]

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.setting),
            "balances": [self._balance(balance) for balance in self.balances],
            "bytes_per_client": {str(trust): asdict(each.traffic) for trust, each in self.outcomes.items()},
            "largest_error": {str(trust): each.error for trust, each in self.outcomes.items()},
        }

    def _balance(self, balance: Balance) -> dict[str, Any]:
        return {
            "trust": str(balance.trust),
            "role": balance.role,
            "cpu_ms": {
                str(cost): {
                    "setup": 1e3 * entry.setup,
                    "each_sum": 1e3 * entry.each_sum,
                    "amortised": 1e3 * entry.amortised(balance.sums),
                    "setup_calls": entry.setup_calls,
                    "sum_calls": entry.sum_calls,
                }
                for cost, entry in balance.entries.items()
            },
            "setup_ms": 1e3 * balance.setup,
            "each_sum_ms": 1e3 * balance.each_sum,
            "primitives_ms": 1e3 * balance.primitives,
            "around_ms": 1e3 * balance.around,
            "ratio": balance.ratio,
            "holds": balance.holds,
        }


def measure(setting: Setting, progress: OnProgress) -> PrimitivesReport:
    """Run the sessions and balance client and server under each trust level."""
    balances: list[Balance] = []
    outcomes: dict[Trust, Outcome] = {}
    client = setting.clients // 2
    for trust in Trust:
        progress(f"{trust}: a session, recorded")
        recorder, watch = Recorder((client, SERVER)), Stopwatch()
        run_session(setting, trust, recorder)
        replays = Replays(recorder, setting.sums)
        progress(f"{trust}: a session, timed, and primitives, replayed")
        outcomes[trust] = run_session(setting, trust, watch, around=replays.time)
        balances.append(replays.balance(trust, "client", client, watch, range(setting.clients)))
        balances.append(replays.balance(trust, "server", SERVER, watch, [SERVER]))
    return PrimitivesReport(setting, tuple(balances), outcomes)


def run_session(
    setting: Setting,
    trust: Trust,
    meter: Recorder | Stopwatch,
    *,
    around: Callable[[Phase], None] = lambda _: None,
) -> Outcome:
    """Run one session without drop-outs, every sum with a broadcast of one byte."""
    updates = _vectors(setting)
    plain = updates.sum(axis=0)

    def answer(member: int, _asked: Asked) -> dict[str, Any]:
        return {PART: updates[member]}

    server, clients = local_machines(
        table=setting.table(),
        params=SessionParams(
            trust=trust,
            corrupt=setting.corrupt,
            dropout=DROPOUT,
            sums=setting.sums,
            graph=GraphChoice.COMPLETE,
        ),
        members=range(setting.clients),
    )
    session = LocalSession(server, clients, answer)
    around(Phase.SETUP)
    with meter.running():
        meter.phase = Phase.SETUP
        session.open()
    around(Phase.SETUP)
    before = _traffic(session)
    errors = []
    for number in range(setting.sums):
        around(Phase.SUM)
        with meter.running():
            meter.phase = Phase.SUM
            total = session.ask(KIND, bytes([number]), round_number=number)
        errors.append(float(np.abs(total[PART] - plain).max()))
    around(Phase.SUM)
    after = _traffic(session)
    session.end()
    setup = [count // setting.clients for count in before]
    each_sum = [(b - a) // (setting.clients * setting.sums) for a, b in zip(before, after, strict=True)]
    return Outcome(Traffic(*setup, *each_sum), max(errors))


def _vectors(setting: Setting) -> NDArray[np.float64]:
    """Return one vector per client, each as long as the bound allows."""
    drawn = np.random.default_rng(0).normal(size=(setting.clients, setting.dim))
    vectors: NDArray[np.float64] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return vectors


def _traffic(session: LocalSession) -> tuple[int, int]:
    return session.bytes_up.total(), session.bytes_down.total()

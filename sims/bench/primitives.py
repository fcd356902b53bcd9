"""CPU time per client and sum, split by primitive, under both trust levels.

Two sessions are run under each trust level with real machines: a *recorded* one, which tells what one
client and the server call how often and at which sizes, and a *timed* one, without anything but a clock
around the machines' public calls. Before and after each phase, its recorded calls are replayed bare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from secagg import Count, LInf, LocalSession, Part, SumSpec, Table, Trust, local_machines
from secagg.events import Asked
from sims.bench.balance import Balance, Replays
from sims.bench.meter import SERVER, Phase, Recorder, Stopwatch

KIND: Final = "update"
_CAP: Final = 1000  # the largest weight

Progress: TypeAlias = Callable[[str], None]


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
        update = Part(name="update", size=self.dim, bits=self.bits, bound=LInf(1.0))
        weight = Part(name="weight", size=1, bits=self.bits, bound=Count(_CAP))
        return Table({KIND: SumSpec(parts=(update, weight))})


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client, on average: set-up, and one sum."""

    setup_up: int
    setup_down: int
    sum_up: int
    sum_down: int


@dataclass(frozen=True)
class PrimitivesReport:
    """The balances of client and server, and the bytes, by trust level."""

    setting: Setting
    balances: tuple[Balance, ...]
    traffic: Mapping[Trust, Traffic]

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.setting),
            "balances": [self._balance(balance) for balance in self.balances],
            "bytes_per_client": {str(trust): asdict(row) for trust, row in self.traffic.items()},
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
            "primitives_ms": 1e3 * balance.primitives,
            "around_ms": 1e3 * balance.around,
            "ratio": balance.ratio,
            "holds": balance.holds,
        }


def measure(setting: Setting, progress: Progress) -> PrimitivesReport:
    """Run the sessions and balance client and server under each trust level."""
    balances: list[Balance] = []
    traffic: dict[Trust, Traffic] = {}
    client = setting.clients // 2
    for trust in Trust:
        progress(f"{trust}: a session, recorded")
        recorder, watch = Recorder((client, SERVER)), Stopwatch()
        run_session(setting, trust, recorder)
        replays = Replays(recorder, setting.sums)
        progress(f"{trust}: a session, timed, and primitives, replayed")
        traffic[trust] = run_session(setting, trust, watch, around=replays.time)
        balances.append(replays.balance(trust, "client", client, watch, range(setting.clients)))
        balances.append(replays.balance(trust, "server", SERVER, watch, [SERVER]))
    return PrimitivesReport(setting, tuple(balances), traffic)


def run_session(
    setting: Setting,
    trust: Trust,
    meter: Recorder | Stopwatch,
    *,
    around: Callable[[Phase], None] = lambda _: None,
) -> Traffic:
    """One session without drop-outs, every sum with a broadcast as large as a model."""
    rng = np.random.default_rng(0)
    updates = rng.uniform(-1, 1, (setting.clients, setting.dim))
    weights = rng.integers(1, _CAP, (setting.clients, 1))

    def answer(member: int, _asked: Asked) -> dict[str, Any]:
        return {"update": updates[member], "weight": weights[member]}

    server, clients = local_machines(
        table=setting.table(),
        trust=trust,
        members=range(setting.clients),
        corrupt=setting.corrupt,
        dropout=0,
        sums=setting.sums,
    )
    session = LocalSession(server, clients, answer)
    around(Phase.SETUP)
    with meter.running():
        meter.phase = Phase.SETUP
        session.open()
    around(Phase.SETUP)
    before = _traffic(session)
    for number in range(setting.sums):
        around(Phase.SUM)
        model = rng.normal(size=setting.dim).astype("<f4")
        with meter.running():
            meter.phase = Phase.SUM
            session.ask(KIND, model.tobytes(), round_number=number)
    around(Phase.SUM)
    after = _traffic(session)
    session.end()
    setup = [count // setting.clients for count in before]
    each_sum = [(b - a) // (setting.clients * setting.sums) for a, b in zip(before, after, strict=True)]
    return Traffic(*setup, *each_sum)


def _traffic(session: LocalSession) -> tuple[int, int]:
    return session.bytes_up.total(), session.bytes_down.total()

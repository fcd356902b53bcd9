"""The wall time of a session over TLS between processes, beside its CPU time in one process.

If the network, TLS and the processes cost nothing, and all cores were busy all the time, a session would take
its CPU time divided by the cores. Both kinds of session take turns; starting processes is not counted.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from secagg import LocalSession, local_machines
from secagg.graph_parameters import GraphChoice
from secagg.session_params import SessionParams
from sims.console_progress import OnProgress
from sims.drill.client_worker import numbers, plain_sum
from sims.drill.config import KIND, PART, DrillConfig
from sims.drill.report import DrillReport, fingerprint
from sims.drill.run import run_drill

RUNS: Final = 5


@dataclass(frozen=True, kw_only=True)
class NetworkReport:
    """Medians of several sessions, each with its exchange of keys.

    `session_cpu_s`      of server and clients in one process, frames handed over in memory.
    `session_wall_s`     of the same in processes, over TLS on the loopback device.
    `server_peak_bytes`  the most memory that the process of the server ever had.
    """

    setting: DrillConfig
    cores: int
    runs: int
    exact: bool
    session_cpu_s: float
    session_wall_s: float
    setup_wall_s: float
    bytes_up: int  # of a client
    bytes_down: int
    server_peak_bytes: int

    @property
    def wall_over_share(self) -> float:
        """The wall time, relative to the best possible time of all cores together."""
        return self.session_wall_s / (self.session_cpu_s / self.cores)

    def as_json(self) -> dict[str, Any]:
        setting = self.setting
        return {
            "clients": setting.clients,
            "dim": setting.dim,
            "sums": setting.sums,
            "neighbours": setting.neighbours or setting.clients - 1,
            "trust": str(setting.trust),
            "workers": len(setting.groups()),
            "tls": setting.tls,
            "cores": self.cores,
            "runs": self.runs,
            "exact": self.exact,
            "session_cpu_s": self.session_cpu_s,
            "session_wall_s": self.session_wall_s,
            "setup_wall_s": self.setup_wall_s,
            "wall_over_share": self.wall_over_share,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "server_peak_bytes": self.server_peak_bytes,
        }


def measure(setting: DrillConfig, progress: OnProgress, *, runs: int = RUNS) -> NetworkReport:
    """Run sessions of both kinds, one after the other."""
    alone: list[float] = []
    together: list[DrillReport] = []
    exact = True
    for run in range(runs):
        progress("one process", 2 * run, 2 * runs)
        spent, right = _in_one_process(setting)
        alone.append(spent)
        progress("over the network", 2 * run + 1, 2 * runs)
        together.append(run_drill(setting, lambda _: None))
        exact &= right and together[-1].as_promised
    return NetworkReport(
        setting=setting,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        runs=runs,
        exact=exact,
        session_cpu_s=median(alone),
        session_wall_s=median(report.seconds for report in together),
        setup_wall_s=median(report.setup_seconds for report in together),
        bytes_up=sum(together[-1].bytes_up.values()) // setting.clients,
        bytes_down=sum(together[-1].bytes_down.values()) // setting.clients,
        server_peak_bytes=max(report.server_peak_bytes for report in together),
    )


def _in_one_process(setting: DrillConfig) -> tuple[float, bool]:
    """Return the CPU seconds of the session, and whether its totals are right."""
    server, clients = local_machines(
        table=setting.table,
        params=SessionParams(
            trust=setting.trust,
            corrupt=setting.corrupt,
            dropout=setting.dropout,
            sums=setting.sums,
            graph=GraphChoice.RING if setting.neighbours else GraphChoice.AUTO,
            min_neighbours=setting.neighbours or 2,
        ),
        members=range(setting.clients),
    )
    session = LocalSession(
        server, clients, lambda member, asked: {PART: numbers(setting, member, asked.sum_index)}
    )
    started = time.process_time()
    session.open()
    totals = [
        session.ask(KIND, index.to_bytes(4, "big"), round_number=index) for index in range(setting.sums)
    ]
    spent = time.process_time() - started
    right = all(
        fingerprint(total[PART]) == fingerprint(plain_sum(setting, range(setting.clients), index))
        for index, total in enumerate(totals)
    )
    return spent, right

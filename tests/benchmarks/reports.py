"""Reports of sums that nobody ran, with numbers that are easy to tell apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.cores import Rates
from benchmarks.costs import Cost
from benchmarks.cpu_breakdown import Balance, Entry
from benchmarks.encoding import EncodingCosts
from benchmarks.flower import FlowerCosts
from benchmarks.machine import Machine
from benchmarks.packing import PackingCost
from benchmarks.page_measurements import Survey
from benchmarks.page_plan import QUICK
from benchmarks.peers import Row
from benchmarks.primitives import PrimitivesReport
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import SumReport
from secagg import Trust

OURS = SumReport(
    exact=True, clients=12, dim=10, bits=32, trust="curious_server", agreement="x25519", graph="ring",
    neighbours=6, threshold=3, corrupt=1, dropped=1, processes=1, client_masks=7, server_masks=17,
    client_setup_cpu_s=1.0,
    client_query_cpu_s=2.0, client_encode_cpu_s=4.0, client_mask_cpu_s=8.0, client_limit_cpu_s=5.0,
    client_confirm_cpu_s=0.0, client_reveal_cpu_s=16.0, server_setup_cpu_s=32.0, server_sum_cpu_s=64.0,
    server_confirm_cpu_s=0.0, server_unmask_cpu_s=128.0, server_unmask_wall_s=256.0, server_limit_cpu_s=100.0,
    server_peak_bytes=1000, bytes_up=500, bytes_down=700, bytes_ideal=400,
    setup_bytes_up=50, setup_bytes_down=300,
)  # fmt: skip

FLOWER = FlowerCosts(
    version="9.9", seed=0, dropped=1, error=0.0, step=1.0, client_setup_cpu_s=100.0, client_mask_cpu_s=120.0,
    client_unmask_cpu_s=28.0, server_setup_cpu_s=96.0, server_sum_cpu_s=160.0, server_unmask_cpu_s=640.0,
    wire_cpu_s=1e9, bytes_up=1000, masked_bytes_per_element=8.0, peak_bytes=10**6,
)  # fmt: skip


def report_of(setting: SumSetting, **changes: Any) -> SumReport:
    """What a sum of that setting might have cost."""
    size = {"clients": setting.clients, "dim": setting.dim, "bits": setting.bits}
    return replace(OURS, **(size | {"processes": setting.processes} | changes))


def balances() -> Sequence[Balance]:
    entries = dict.fromkeys(Cost, Entry(setup=0.0, each_sum=0.0)) | {Cost.DH: Entry(0.25, 0.5)}
    return tuple(Balance(trust, role, 3, entries) for trust in Trust for role in ("client", "server"))


def made_up_survey() -> Survey:
    """A survey in which everything that is promised just holds."""
    plan = QUICK
    at_limit = {"server_unmask_cpu_s": 1.6, "server_limit_cpu_s": 1.0, "client_limit_cpu_s": 1.0}
    in_size = {"bytes_up": 102, "bytes_ideal": 100}
    lengths = [plan.lengths.sum_of(dim) for dim in plan.lengths.dims]
    by_dim = [report_of(each, client_mask_cpu_s=1.4, **at_limit, **in_size) for each in lengths]
    small, large = (plan.cohort(clients) for clients in plan.cohorts)
    one, two = (report_of(plan.in_processes(processes)) for processes in (1, 2))
    return Survey(
        plan=plan,
        machine=Machine("Some CPU", 2, 0.25, "Linux", "CPython 3.11.0", ("numpy 2.0",), "OpenSSL 3"),
        by_dim=by_dim,
        rows=[Row(replace(each, server_unmask_cpu_s=12.8), FLOWER) for each in by_dim],
        absent="",
        majority=FLOWER,
        narrow=report_of(plan.narrow, client_mask_cpu_s=1.7, **at_limit, **in_size),
        one_process=[replace(one, server_unmask_wall_s=wall) for wall in (150.0, 100.0)],
        two_processes=[replace(two, server_unmask_wall_s=wall) for wall in (65.0, 90.0)],
        cores=Rates(one=17_000.0, two=34_000.0),
        crowd=report_of(plan.crowd, server_peak_bytes=10 * 4 * plan.crowd.dim + 1000 * 14 * 6),
        by_clients=[
            report_of(small, client_mask_cpu_s=2.0, client_setup_cpu_s=4.0),
            report_of(large, client_mask_cpu_s=3.0, client_setup_cpu_s=6.0),
        ],
        encoding=EncodingCosts(
            dim=1024,
            encode_noise_cpu_s=150.0,
            plain_encode_cpu_s=60.0,
            transform_cpu_s=25.0,
            noise_draw_cpu_s=15.0,
            add_cpu_s=1.0,
        ),
        packing=[PackingCost(bits, pack_ns=bits, add_ns=100 - bits) for bits in range(1, 65)],
        primitives=PrimitivesReport(plan.primitives, tuple(balances()), {}),
    )


def without_flower() -> Survey:
    return replace(made_up_survey(), rows=(), absent="Flower is not here", majority=None)

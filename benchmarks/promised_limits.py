"""The promised costs of a sum, and whether a survey met them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.limits import Mask
from benchmarks.markdown import megabytes, milliseconds, significant
from benchmarks.page_measurements import Survey
from benchmarks.sums import SumReport

CLIENT_OVER_LIMIT: Final = 1.4
NARROW_CLIENT_OVER_LIMIT: Final = 1.7  # bits that fill no word have to be packed
SERVER_OVER_LIMIT: Final = 1.6
BYTES_OVER_IDEAL: Final = 1.02
LARGER_COHORT: Final = 1.5
TWO_PROCESSES: Final = 0.65
FASTER_THAN_FLOWER: Final = 50
NOISE_OVER_PARTS: Final = 1.5
TRANSFORM_OVER_ADDS: Final = 2.5

VECTORS: Final = 10  # of 32 bits, that the server of a large cohort may hold
EACH_EDGE: Final = 1000  # bytes that it may hold for each client and neighbour


@dataclass(frozen=True)
class Bar:
    """A figure of one sum, and its limit; an empty `bar` promises nothing."""

    sum: str
    figure: str
    measured: str
    bar: str = ""
    holds: bool = True


def peak_bound(report: SumReport) -> int:
    return VECTORS * report.dim * 4 + EACH_EDGE * report.clients * report.neighbours


def bars(found: Survey) -> list[Bar]:
    return [
        *_limits(found),
        *_memory(found),
        *_cohorts(found),
        *_processes(found),
        *_noise(found),
        *_flower(found),
    ]


def verdict(found: Survey) -> str:
    """Return that every bar holds, or a line for each that does not."""
    promised = [bar for bar in bars(found) if bar.bar]
    broken = [f"{bar.sum}: {bar.figure}: {bar.measured}, {bar.bar}" for bar in promised if not bar.holds]
    if broken:
        return "\n".join((f"{len(broken)} of {len(promised)} bars do not hold", *broken))
    return f"all {len(promised)} bars hold"


def _at_most(sum_name: str, figure: str, of: str, measured: float, most: float) -> Bar:
    """Return a bar; `of` is the measured quotient."""
    return Bar(sum_name, figure, f"{of} = {significant(measured)}", f"at most {most:g}", measured <= most)


def _exact(sum_name: str, *reports: SumReport) -> Bar:
    exact = all(report.exact for report in reports)
    figure = "total equals the plain sum, to the last bit"
    return Bar(sum_name, figure, "yes" if exact else "no", "yes", exact)


def _name(report: SumReport) -> str:
    return f"n = {report.clients:,}, k = {report.neighbours}, d = {report.dim:,}, {report.bits} bits"


def _over(seconds: float, limit: float) -> str:
    return f"{milliseconds(seconds)} ms / {milliseconds(limit)} ms"


def _limits(found: Survey) -> Iterator[Bar]:
    long, narrow = found.long, found.narrow
    yield _exact(_name(long), long)
    yield _client(long, CLIENT_OVER_LIMIT)
    yield _server(long)
    yield from _size(long)
    yield _exact(_name(narrow), narrow)
    yield _client(narrow, NARROW_CLIENT_OVER_LIMIT)
    yield from _size(narrow)


def _client(report: SumReport, most: float) -> Bar:
    spent = _over(report.client_mask_cpu_s, report.client_limit_cpu_s)
    return _at_most(_name(report), "client mask / limit", spent, report.client_mask_over_limit, most)


def _server(report: SumReport) -> Bar:
    spent = _over(report.server_unmask_cpu_s, report.server_limit_cpu_s)
    ratio = report.server_unmask_over_limit
    return _at_most(_name(report), "server unmask / limit", spent, ratio, SERVER_OVER_LIMIT)


def _size(report: SumReport) -> Iterator[Bar]:
    """Return what a client sends, with more digits than a time has, and what the server holds."""
    ratio = report.bytes_over_ideal
    sent = f"{report.bytes_up:,} / {report.bytes_ideal:,} = {ratio:.4f}"
    bar = f"at most {BYTES_OVER_IDEAL}"
    yield Bar(_name(report), "bytes up / ideal", sent, bar, ratio <= BYTES_OVER_IDEAL)
    yield Bar(_name(report), "server peak", f"{megabytes(report.server_peak_bytes)} MB")


def _memory(found: Survey) -> Iterator[Bar]:
    crowd, bound = found.crowd, peak_bound(found.crowd)
    yield _exact(_name(crowd), crowd)
    yield Bar(
        _name(crowd),
        "server peak",
        f"{megabytes(crowd.server_peak_bytes)} MB",
        f"at most {megabytes(bound)} MB: {VECTORS} d * 4 bytes + {EACH_EDGE} n k",
        crowd.server_peak_bytes <= bound,
    )


def _cohorts(found: Survey) -> Iterator[Bar]:
    small, large = (found.of_cohort(clients) for clients in found.plan.compared)
    name = f"n = {large.clients:,} / n = {small.clients:,}, d = {large.dim:,}, {large.bits} bits"
    yield _exact(name, small, large)
    costs = {
        "client mask": (large.client_mask_cpu_s, small.client_mask_cpu_s),
        "client set-up": (large.client_setup_cpu_s, small.client_setup_cpu_s),
    }
    for figure, (one, other) in costs.items():
        yield _at_most(name, figure, _over(one, other), one / other, LARGER_COHORT)


def _processes(found: Survey) -> Iterator[Bar]:
    """Take the best of several runs, because wall time includes other work on the machine."""
    one, two = (
        min(report.server_unmask_wall_s for report in reports)
        for reports in (found.one_process, found.two_processes)
    )
    name = _name(found.one_process[0])
    yield _exact(name, *found.two_processes)
    figure = "server unmask by the clock, 2 processes / 1"
    yield _at_most(name, figure, _over(two, one), two / one, TWO_PROCESSES)
    yield Bar(name, "its masks as bare AES and additions, 2 processes / 1", _cores(found, two / one))


def _cores(found: Survey, ratio: float) -> str:
    """Return the limit of the machine at the same time, and the distance of `ratio` from it."""
    limit = found.cores
    masks = found.one_process[0].server_masks * Mask.of(found.plan.in_processes(1).spec).bytes
    spent = _over(masks / limit.two, masks / limit.one)
    return f"{spent} = {significant(limit.ratio)}; ours is {significant(ratio / limit.ratio)} of it"


def _noise(found: Survey) -> Iterator[Bar]:
    costs, name = found.encoding, f"noise, d = {found.encoding.dim:,}, {found.plan.noisy.bits} bits"
    parts = costs.plain_encode_cpu_s + costs.transform_cpu_s + costs.noise_draw_cpu_s
    spent = _over(costs.encode_noise_cpu_s, parts)
    figure = "client encode / rounding, transform and draw"
    yield _at_most(name, figure, spent, costs.encode_noise_over_parts, NOISE_OVER_PARTS)
    spent = _over(costs.transform_cpu_s, costs.transform_cpu_s / costs.transform_over_adds)
    figure = "transform / log2(d) additions of numpy"
    yield _at_most(name, figure, spent, costs.transform_over_adds, TRANSFORM_OVER_ADDS)


def _flower(found: Survey) -> Iterator[Bar]:
    row = found.beside_flower(found.plan.peer_dim)
    if row is None:
        return
    spent = _over(row.flower.server_unmask_cpu_s, row.ours.server_unmask_cpu_s)
    yield Bar(
        _name(row.ours),
        "server unmask, Flower / ours",
        f"{spent} = {significant(row.server_unmask_ratio)}",
        f"at least {FASTER_THAN_FLOWER}",
        row.server_unmask_ratio >= FASTER_THAN_FLOWER,
    )

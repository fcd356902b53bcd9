"""The sections of the page of benchmarks that have plots or tables of costs."""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.costs import AROUND, LABELS, PRIMITIVES, Cost
from benchmarks.cpu_breakdown import Balance
from benchmarks.markdown import megabytes, milliseconds, paragraphs, prose, significant, table
from benchmarks.page_measurements import Survey
from benchmarks.promised_limits import bars


def machine_section(found: Survey) -> str:
    here = found.machine
    rows = [
        ("processor", f"{here.processor}, {here.cores} cores"),
        ("load before the run", f"{here.load:.1f} processes on average, over a minute"),
        ("system", f"{here.system}, {here.python}"),
        ("packages", ", ".join((*here.packages, here.openssl))),
    ]
    return paragraphs("## The machine", table(("", ""), rows, texts=2))


def bars_section(found: Survey) -> str:
    rows, previous = [], ""
    for bar in bars(found):
        holds = "" if not bar.bar else "holds" if bar.holds else "**does not hold**"
        rows.append((bar.sum if bar.sum != previous else "", bar.figure, bar.measured, bar.bar, holds))
        previous = bar.sum
    return paragraphs("## The bars", table(("sum", "figure", "measured", "bar", ""), rows, texts=5))


def dim_section(found: Survey, plot: str) -> str:
    rows = [
        (
            f"{each.dim:,}",
            milliseconds(each.client_encode_cpu_s),
            milliseconds(each.client_mask_cpu_s),
            milliseconds(each.client_limit_cpu_s),
            milliseconds(each.server_unmask_cpu_s),
            milliseconds(each.server_limit_cpu_s),
            f"{each.bytes_over_ideal:.3f}",
            megabytes(each.server_peak_bytes),
        )
        for each in found.by_dim
    ]
    first, last = found.by_dim[0], found.by_dim[-1]
    head = (
        "d", "client: encode, ms", "mask, ms", "limit, ms", "server: unmask, ms", "limit, ms",
        "bytes up / ideal", "server peak, MB",
    )  # fmt: skip
    alternative = f"""
        Cost against the length of the vector: from {first.dim:,} to {last.dim:,} elements, a client's masking
        goes from {milliseconds(first.client_mask_cpu_s)} to {milliseconds(last.client_mask_cpu_s)} ms, the
        server's unmasking from {milliseconds(first.server_unmask_cpu_s)} to
        {milliseconds(last.server_unmask_cpu_s)} ms"""
    why = f"""
        The same in numbers: {first.clients:,} clients with {first.neighbours} neighbours each, threshold
        {first.threshold}, {first.bits} bits. A client puts on {first.client_masks} masks, and the server
        takes off about {first.server_masks}. Short vectors cost what their keys cost; beside long ones, keys
        cost nothing, and masks cost what AES costs."""
    heading = "## Against the length of the vector"
    return paragraphs(heading, _picture(plot, alternative), prose(why), table(head, rows, texts=0))


def clients_section(found: Survey, plot: str) -> str:
    rows = [
        (
            f"{each.clients:,}",
            each.graph,
            f"{each.neighbours}",
            f"{each.threshold}",
            milliseconds(each.client_setup_cpu_s),
            milliseconds(each.client_mask_cpu_s),
            milliseconds(each.server_unmask_cpu_s),
            f"{each.server_masks:,}",
            f"{each.bytes_up:,}",
            megabytes(each.server_peak_bytes),
        )
        for each in found.by_clients
    ]
    first, last = found.by_clients[0], found.by_clients[-1]
    head = (
        "n", "graph", "k", "threshold", "client: set-up, ms", "mask, ms", "server: unmask, ms",
        "masks removed", "bytes up", "server peak, MB",
    )  # fmt: skip
    alternative = f"""
        Cost against the number of clients: from {first.clients:,} to {last.clients:,} clients, a client's
        set-up goes from {milliseconds(first.client_setup_cpu_s)} to {milliseconds(last.client_setup_cpu_s)}
        ms and its masking from {milliseconds(first.client_mask_cpu_s)} to
        {milliseconds(last.client_mask_cpu_s)} ms, the server's unmasking from
        {milliseconds(first.server_unmask_cpu_s)} to {milliseconds(last.server_unmask_cpu_s)} ms"""
    why = f"""
        The same in numbers: {first.dim:,} elements of {first.bits} bits. Graph, neighbours and threshold are
        those that `secagg params` finds for the cohort; in the plot, a client's neighbours stand above its
        costs. On the complete graph these grow with the cohort, and on a ring they hardly do. The server
        takes off a mask for each client that stayed, and one for each neighbour of a client that left."""
    heading = "## Against the number of clients"
    return paragraphs(heading, _picture(plot, alternative), prose(why), table(head, rows, texts=0))


def packing_section(found: Survey, plot: str) -> str:
    costs = found.packing
    packing, adding = max(costs, key=lambda each: each.pack_ns), max(costs, key=lambda each: each.add_ns)
    alternative = f"""
        Packing costs at most {significant(packing.pack_ns)} ns per element, at {packing.bits} bits, and
        unpacking with addition at most {significant(adding.add_ns)} ns, at {adding.bits} bits"""
    why = f"""
        {alternative}. At 8, 16, 32 and 64 bits, an element fills a word of numpy, and there is nothing to do
        but to copy it or to add it. A point is the best of several rounds with {found.plan.packed:,}
        elements."""
    heading = "## Packing, at every number of bits"
    return paragraphs(heading, _picture(plot, alternative), prose(why))


def _picture(plot: str, text: str) -> str:
    return f"![{' '.join(text.split())}]({plot})"


def primitives_section(found: Survey) -> str:
    report = found.primitives
    setting, balances = report.setting, report.balances
    phases = ("set-up", "each sum")
    head = [f"{each.role}, `{each.trust}`: {phase}" for each in balances for phase in phases]
    rows = [[LABELS[cost], *_spent(balances, (cost,))] for cost in PRIMITIVES]
    rows.append(["**primitives**", *_spent(balances, PRIMITIVES)])
    rows += [[LABELS[cost], *_spent(balances, (cost,))] for cost in AROUND]
    rows.append(["**around them**", *_spent(balances, AROUND)])
    why = f"""
        Sessions without drop-outs on the complete graph: {setting.clients} clients, {setting.sums} sums of
        {setting.dim:,} elements of {setting.bits} bits. CPU milliseconds of the primitives, replayed with
        nothing around them, and of all that a machine spends beyond them."""
    return paragraphs("## What the time is spent on", prose(why), table(("", *head), rows))


def _spent(balances: Collection[Balance], costs: Collection[Cost]) -> list[str]:
    """Return for each balance the milliseconds of `costs` in set-up and in each sum."""
    cells = []
    for balance in balances:
        entries = [balance.entries[cost] for cost in costs]
        cells += [sum(entry.setup for entry in entries), sum(entry.each_sum for entry in entries)]
    return [milliseconds(seconds) if seconds else "" for seconds in cells]

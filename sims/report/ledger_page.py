"""Builds the page about ledgers of a deployment: a single HTML file that loads no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sims.audit.audit_result import Spent
from sims.audit.ledger_audit import DeploymentAudit, KindOfSums, LedgerAudit, LedgerSum, audit_ledgers
from sims.config_problems import ConfigError
from sims.records.run_directory import replace_file
from sims.report.html_elements import (
    Markup,
    ReportTable,
    TableCell,
    element,
    joined,
    number_cell,
    tabulated,
    text_cell,
)
from sims.report.page import document
from sims.text_format import counted, sentence_of

_MOST_ROWS: Final = 400
_NO_NOISE: Final = TableCell("no noise", tone="bad")


def write_ledger_report(
    paths: Sequence[Path], output: Path | None = None, *, server_key: bytes | None = None
) -> Path:
    """Write the page about ledgers of one deployment to `output`, by default beside the first of them. Return
    the file's path. Raise `ConfigError` if there is no ledger, or if reading or writing fails."""
    where = paths[0].with_name(f"{paths[0].name}.html") if output is None else output
    if where.is_dir():
        raise ConfigError(f"{where} is a directory: give the name of a file, such as {where / 'ledger.html'}")
    replace_file(where, ledger_page(audit_ledgers(paths, server_key=server_key)).encode())
    return where


def ledger_page(audit: DeploymentAudit) -> str:
    """Return the page as HTML."""
    names = " and ".join(each.owner if each.rows else "a damaged file" for each in audit.ledgers)
    title = f"The ledger of {names}" if len(audit.ledgers) == 1 else f"The ledgers of {names}"
    content = (_ledger(each, number, audit.delta) for number, each in enumerate(audit.ledgers))
    body = joined(
        element("header", element("h1", title)),
        element("main", _banner(audit), content, id="main"),
    )
    return document(title, sentence_of(title), body)


def _banner(audit: DeploymentAudit) -> Markup:
    if audit.intact:
        return element("p", element("strong", "Consistent, not authenticated.", class_="quiet"))
    problems = element("ul", (element("li", sentence_of(each)) for each in audit.all_problems))
    title = element("strong", "These records were altered, or contradict each other.")
    return element("aside", title, " ", problems, class_="banner bad", role="note")


def _ledger(found: LedgerAudit, number: int, delta: float) -> Markup:
    if not found.rows:
        return element("section", element("h2", found.path), element("p", "Nothing is shown of this ledger."))
    about = f"{counted(found.rows, 'row')}, head {found.head}, begun {found.created}"
    remarks = element("ul", (element("li", sentence_of(each)) for each in found.remarks), class_="remarks")
    tables = (tabulated(table) for table in _tables(found, f"ledger-{number}-", delta) if table.rows)
    return element(
        "section", element("h2", f"{found.path}: {found.owner}"), element("p", about), tables, remarks
    )


def _tables(found: LedgerAudit, prefix: str, delta: float) -> Iterator[ReportTable]:
    what = "What the server learned" if found.role == "server" else "What the client was asked, and answered"
    yield ReportTable(
        key=f"{prefix}kinds",
        caption=f"{what}, by kind of sum",
        columns=("Kind", "Parts", "Sums", "Totals", "Rounds", "Clients", "rho"),
        rows=tuple(_kind(each) for each in found.kinds),
    )
    whose = "A client in every released sum" if found.role == "server" else "The client, by its own count"
    yield ReportTable(
        key=f"{prefix}cost",
        caption="What privacy has cost",
        columns=("Whose", "rho", "Epsilon", "Delta", "Sums without noise"),
        rows=(_spent(whose, found.spent, delta),),
        note=f"Adjacency: {found.adjacency}.",
    )
    left = len(found.sums) - _MOST_ROWS
    yield ReportTable(
        key=f"{prefix}sums",
        caption="Every sum, in order",
        columns=("Sum", "Session", "Round", "Kind", "Asked", "Contributors", "rho", "Failure"),
        rows=tuple(_sum(place, each) for place, each in enumerate(found.sums[:_MOST_ROWS], 1)),
        note=f"{left:,} further sums are left out here; secagg audit --json has them." if left > 0 else "",
        folded=True,
        noun="sums",
    )
    yield ReportTable(
        key=f"{prefix}departures",
        caption="Clients that were excluded",
        columns=("Client", "What", "Why"),
        rows=tuple(
            (TableCell(str(each.member)), TableCell(each.what), TableCell(each.why))
            for each in found.departures
        ),
    )


def _kind(kind: KindOfSums) -> tuple[TableCell, ...]:
    parts = "; ".join(f"{part.name}: {part.size:,} of {part.bits} bits, {part.bound}" for part in kind.parts)
    low, high = kind.least_contributors, kind.most_contributors
    clients = None if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
    rounds = f"{kind.first_round}-{kind.last_round}"
    rho = _NO_NOISE if kind.rho is None else number_cell(kind.rho)
    counts = (number_cell(kind.asked), number_cell(kind.released))
    return (TableCell(kind.kind), TableCell(parts), *counts, TableCell(rounds), text_cell(clients), rho)


def _spent(whose: str, spent: Spent, delta: float) -> tuple[TableCell, ...]:
    epsilon = _NO_NOISE if spent.epsilon is None else number_cell(spent.epsilon)
    return (
        TableCell(whose),
        number_cell(spent.rho),
        epsilon,
        number_cell(delta),
        number_cell(spent.unnoised),
    )


def _sum(place: int, each: LedgerSum) -> tuple[TableCell, ...]:
    rho = _NO_NOISE if each.rho is None else number_cell(each.rho)
    count = text_cell(None) if each.contributors is None else number_cell(each.contributors)
    where = (
        TableCell(str(place)),
        TableCell(each.session[:8]),
        number_cell(each.round),
        TableCell(each.kind),
    )
    return (*where, number_cell(each.roster), count, rho, text_cell(each.failure))

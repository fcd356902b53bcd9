"""Builds the sections of a report page, from the headline to the commands that repeat the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from sims import text_format
from sims.audit.audit_result import Exposure, Integrity
from sims.records.run_directory import SERVED
from sims.report.audit_and_comparison_tables import VERDICT_TONES, compared, findings
from sims.report.headline import KeyFigure, figures, sentence
from sims.report.html_elements import NOTHING, Child, Markup, element, tabulated
from sims.report.privacy_panel import glossary, panels
from sims.report.reported_run import ReportedRun
from sims.report.sum_and_privacy_plots import privacy, steps, survivors, traffic
from sims.report.svg_plots import Drawable, figure
from sims.report.training_plots import training_plots
from sims.text_format import counted, sentence_of

_CHANNELS: Final = {
    "plain": "plain sums, no protection",
    "secure": "secure sums, one process",
    "processes": "secure sums over TLS, in many processes",
    "ray-plain": "plain sums, no protection, in actors of Ray",
    "ray-secure": "secure sums, clients in actors of Ray",
}
_TRUST: Final = {"curious_server": "a curious server", "malicious_server": "a malicious server"}


@dataclass(frozen=True)
class Detail:
    """Limits that keep a page small: the most positions of a plot, rows of a table, and runs on the page."""

    places: int  # positions of a plot
    rows: int  # rows of a table
    runs: int


@dataclass(frozen=True)
class PageSection:
    """A section of the page, with the function that returns its HTML for the given runs."""

    key: str  # the id of its element
    link: str  # its name in the navigation
    build: Callable[[Sequence[ReportedRun], Detail], Markup]


# --- the top ---


def top(runs: Sequence[ReportedRun], *, left: int) -> Markup:
    """Return the header of the page. `left` is the number of runs that the page leaves out."""
    subject = runs[0].audit.subject
    links = (element("li", element("a", each.link, href=f"#{each.key}")) for each in SECTIONS)
    return element(
        "header",
        element(
            "div",
            element("p", element("span", "secagg", class_="brand"), f" {subject.name}", class_="kicker"),
            element("button", "Dark theme", id="theme", type="button", hidden=True),
            class_="bar",
        ),
        element("h1", sentence(runs)),
        element("p", _summary(runs, left), class_="summary"),
        element("nav", element("ul", links), aria_label="Sections"),
    )


def _summary(runs: Sequence[ReportedRun], left: int) -> str:
    subject = runs[0].audit.subject
    drawn = "" if subject.per_round == subject.clients else f", {subject.per_round:,} in a round"
    plain, hidden = subject.is_plain, subject.withheld
    parts = [
        counted(len(runs), "run") + (f" of {len(runs) + left:,}" if left else "") if len(runs) > 1 else "",
        "" if "clients" in hidden else f"{counted(subject.clients, 'client')}{drawn}",
        "" if "rounds" in hidden else counted(subject.rounds, "round"),
        "" if "dim" in hidden else counted(subject.dim, "parameter"),
        "" if "channel" in hidden else _CHANNELS.get(subject.channel, subject.channel),
        subject.cluster_text,
        "" if plain or "trust" in hidden else f"against {_TRUST.get(subject.trust, subject.trust)}",
        "" if plain or "key_agreement" in hidden else f"key agreement {subject.key_agreement}",
        "" if "seconds" in hidden else text_format.duration(sum(each.audit.subject.seconds for each in runs)),
    ]
    return " · ".join(filter(None, parts))


def banners(runs: Sequence[ReportedRun]) -> Iterator[Markup]:
    """Yield warnings: altered records, contradicting measurements, insecure seeds and unfinished runs."""
    broken = [each for each in runs if not each.audit.intact]
    for each in broken:
        problems = _list(each.audit.integrity.problems)
        files = ", ".join(each.audit.integrity.withheld)
        hidden = element("p", f"Nothing is shown of what these files say: {files}.") if files else None
        yield _banner("bad", "The records of this run were altered", each, runs, (problems, hidden))
    for each in runs:
        if each.audit.intact and not each.audit.sound:
            refuted = "Bytes contradict the protocol, or a canary the noise that was promised: see below."
            yield _banner("bad", "The measurements of this run do not hold", each, runs, refuted)
    seeded = [each for each in runs if each.audit.subject.insecure_seed is not None]
    if seeded:
        yield _seed_banner(seeded, runs)
    for each in runs:
        subject = each.audit.subject
        if subject.status != "finished":
            why = f" {subject.why.rstrip('.')}." if subject.why else ""
            over = f"{subject.done:,} of {subject.rounds:,} rounds are over.{why}"
            yield _banner("warn", f"This run is {subject.status}", each, runs, over)


def _banner(tone: str, title: str, run: ReportedRun, among: Sequence[ReportedRun], content: Child) -> Markup:
    whose = f" ({run.title})" if len(among) > 1 else ""
    return element(
        "aside", element("strong", title, whose, "."), " ", content, class_=f"banner {tone}", role="note"
    )


def _seed_banner(seeded: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> Markup:
    seeds = dict.fromkeys(str(each.audit.subject.insecure_seed) for each in seeded)
    which = "" if len(seeded) == len(runs) else f" in {counted(len(seeded), 'run')} of {len(runs)}"
    codes = [joiner for seed in list(seeds)[:3] for joiner in (element("code", seed), " ")]
    more = f"and {len(seeds) - 3} more" if len(seeds) > 3 else ""
    return element(
        "aside",
        element("strong", f"insecure_seed{which}."),
        " Keys, rounding and noise follow from a seed, so that the run can be repeated: anyone who knows the "
        "seed can compute everything. Nothing here is protected. ",
        element("span", codes, more, class_="seed"),
        class_="banner warn",
        id="insecure-seed",
        role="note",
    )


def cards(runs: Sequence[ReportedRun]) -> Markup:
    return element(
        "section",
        element("h2", "Key figures", class_="unseen"),
        element("dl", (_card(each) for each in figures(runs)), class_="cards"),
        aria_label="Key figures",
    )


def _card(shown: KeyFigure) -> Markup:
    return element(
        "div",
        element("dt", shown.name),
        element("dd", shown.value, class_="value"),
        element("dd", shown.remark, class_="remark") if shown.remark else None,
    )


# --- privacy ---


def _privacy(runs: Sequence[ReportedRun], _detail: Detail) -> Markup:
    return _section("privacy", "Privacy: what this says about one client", panels(runs))


def _glossary(_runs: Sequence[ReportedRun], _detail: Detail) -> Markup:
    return _section("glossary", "Glossary", glossary())


# --- what is not private ---


def _exposed(runs: Sequence[ReportedRun], _detail: Detail) -> Markup:
    """Return the section on what is not private. An entry that does not hold for all runs names its runs."""
    found: dict[Exposure, list[str]] = {}
    for each in runs:
        for exposure in each.audit.exposures:
            found.setdefault(exposure, []).append(each.title)
    order = sorted(found, key=lambda exposure: exposure.kind is None)  # exposures of a kind of sum come first
    entries = [_exposure(exposure, found[exposure], len(runs)) for exposure in order]
    content = (
        element("ul", entries, class_="exposures") if entries else element("p", "The audit found nothing.")
    )
    return _section("exposed", "What is not private, and why", content)


def _exposure(exposure: Exposure, titles: Sequence[str], of: int) -> Markup:
    few = ", ".join(titles) if len(titles) <= 3 else f"{len(titles)} of {of} runs"
    which = f"{few}: " if len(titles) < of else ""
    what, why = sentence_of(which + exposure.what), sentence_of(exposure.why)
    return element("li", element("strong", what), " ", element("span", why, class_="why"))


# --- what happened ---


def plots(runs: Sequence[ReportedRun]) -> tuple[Drawable, ...]:
    """Return all plots of a report. A plot without data has a text that says why (`empty`) instead."""
    return (*training_plots(runs), survivors(runs), traffic(runs), privacy(runs), *steps(runs))


def _course(runs: Sequence[ReportedRun], detail: Detail) -> Markup:
    places = max(12, detail.places // max(1, len(runs) // 4))
    found = plots(runs)
    drawn = (figure(each, places=places) for each in found if each.drawn)
    # Plots without data, each with the reason.
    missing = [figure(each, places=places) for each in found if not each.drawn]
    last = element("div", missing, class_="figures missing") if missing else None
    hint = element(
        "p",
        "Point at a plot, or move to it with Tab and then with the arrow keys, to read values. Names below a "
        "plot switch series on and off.",
        class_="note hint",
        hidden=True,
    )
    table = tabulated(compared(runs)) if len(runs) > 1 else None
    return _section("course", "What happened", hint, element("div", drawn, class_="figures"), last, table)


# --- the audit ---


def _audits(runs: Sequence[ReportedRun], detail: Detail) -> Markup:
    rows = max(12, detail.rows // len(runs))
    if len(runs) == 1:
        return _section("audit", "Audit", _audit(runs[0], "", rows=rows))
    each = (
        element(
            "details",
            element("summary", element("h3", run.title)),
            _audit(run, f"run-{number}-", rows=rows),
            class_="run",
        )
        for number, run in enumerate(runs, 1)
    )
    return _section("audit", "Audit", each)


def _audit(run: ReportedRun, prefix: str, *, rows: int) -> Iterator[Markup]:
    yield _integrity(run.audit.integrity)
    yield from (tabulated(table) for table in findings(run, prefix, rows=rows))
    yield _list(run.audit.remarks, style="remarks")


def _integrity(found: Integrity) -> Markup:
    verdict = f"The records are {found.verdict}."
    tone = VERDICT_TONES[found.verdict]
    rows = f" {counted(found.rows, 'row')} of the ledger's chain were read." if found.rows is not None else ""
    key = (" They are signed by ", element("code", found.fingerprint), ".") if found.fingerprint else None
    return element(
        "div",
        element("p", element("strong", verdict, class_=tone), rows, key),
        _list((*found.problems, *found.remarks)),
        class_="integrity",
    )


# --- the scenario ---


def _settings(runs: Sequence[ReportedRun], _detail: Detail) -> Markup:
    if len(runs) == 1:
        return _section("scenario", "The scenario as run", _toml(runs[0]))
    each = (
        element("details", element("summary", element("h3", run.title)), _toml(run), class_="run")
        for run in runs
    )
    return _section("scenario", "The scenarios as run", each)


def _toml(run: ReportedRun) -> Markup:
    return _code(f"Scenario of {run.title}", run.scenario)


_REAL_CLIENTS: Final = (
    "A run with real clients is not repeated without them. With data in its scenario, it can be simulated."
)


def _again(runs: Sequence[ReportedRun], _detail: Detail) -> Markup:
    """Return the section with the commands that repeat the runs and inspect their records."""
    commands = dict.fromkeys(each.audit.subject.command for each in runs if each.audit.subject.command)
    served = any(each.audit.subject.channel == SERVED for each in runs)
    seeded = all(each.audit.subject.insecure_seed is not None for each in runs)
    same = (
        "Everything follows from the seed: the numbers will be the same."
        if seeded
        else "Data and training follow from the scenario's seed; keys, rounding and noise are fresh every "
        "time, so numbers differ in their last digits, or by the noise."
    )
    versions = ", ".join(f"{name} {version}" for name, version in runs[0].versions.items())
    return _section(
        "again",
        "How to reproduce",
        element("p", same, f" This was {versions}." if versions else None),
        element("p", _REAL_CLIENTS) if served else NOTHING,
        _code("Commands that repeat it", *commands) if commands else NOTHING,
        element("p", "And to look at what was kept:"),
        _code("Commands that look at it", *_looks([each.audit.subject.path for each in runs])),
    )


def _looks(paths: Sequence[str]) -> tuple[str, str]:
    if len(paths) == 1:
        return f"secagg audit {quote(paths[0])}", f"secagg report {quote(paths[0])}"
    several = " ".join(map(quote, paths))
    return f"secagg audit --compare {several}", f"secagg report {quote(str(Path(paths[0]).parent))}"


def foot() -> Markup:
    return element(
        "footer",
        element(
            "p",
            "Accuracies and errors of single clients are what an observer of the simulation measured. The "
            "server learned what the audit lists, and nothing else. This page is one file and loads nothing.",
        ),
    )


def _list(texts: Sequence[str], style: str | None = None) -> Markup:
    """Return an HTML list of the texts, with capital letter and full stop; empty markup without texts."""
    entries = [element("li", sentence_of(text)) for text in texts]
    return element("ul", entries, class_=style) if entries else NOTHING


def _code(label: str, *lines: str) -> Markup:
    return element("pre", element("code", "\n".join(lines)), tabindex=0, role="region", aria_label=label)


def _section(key: str, title: str, *content: Child) -> Markup:
    return element(
        "section",
        element("h2", title, id=f"{key}-heading"),
        *content,
        id=key,
        aria_labelledby=f"{key}-heading",
    )


# All sections, in the order of the page.
SECTIONS: Final = (
    PageSection("privacy", "Privacy", _privacy),
    PageSection("exposed", "Not private", _exposed),
    PageSection("course", "What happened", _course),
    PageSection("audit", "Audit", _audits),
    PageSection("scenario", "Scenario", _settings),
    PageSection("again", "Reproduce", _again),
    PageSection("glossary", "Glossary", _glossary),
)

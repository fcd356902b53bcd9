"""Builds the page of a report: a single HTML file that loads no other file.

Its content security policy allows only its own style sheet and script, by their hashes, so that no text of a
run can be executed as a script. The page is readable without the script, which adds tooltips, switches,
sorting and folding. The same runs always produce the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from sims.audit.audit_result import Audit
from sims.audit.audit_run import command_for
from sims.config_problems import ConfigError
from sims.records.run_directory import RUNNING, read_file, replace_file
from sims.records.run_file_names import REPORT
from sims.report import sections
from sims.report.headline import sentence
from sims.report.html_elements import NOTHING, Markup, element, joined, verbatim
from sims.report.reported_run import ReportedRun, read_runs
from sims.text_format import counted

_PATH, _KEY = "secagg-run", "secagg-server-key"  # what the page of a run says about how it was made
MOST_BYTES: Final = 1_000_000  # of a page
# Levels of detail (points of a plot, rows of a table, runs). The first one that fits `MOST_BYTES` is used.
_DETAILS: Final = ((240, 400, 24), (120, 150, 24), (60, 60, 24), (30, 20, 24), (20, 12, 12), (12, 12, 6))


def page(runs: Sequence[ReportedRun], *, most_bytes: int = MOST_BYTES) -> str:
    """Return the report as HTML, with the most detail that fits `most_bytes`, or the least if none fits."""
    for detail in _DETAILS:
        text = _page(runs, sections.Detail(*detail))
        if len(text.encode()) < most_bytes:
            break
    return text


def _page(runs: Sequence[ReportedRun], detail: sections.Detail) -> str:
    shown = runs[: detail.runs]
    title = f"{runs[0].audit.subject.name} · report of {counted(len(shown), 'run')} · secagg"
    body = _body(shown, detail, left=len(runs) - len(shown))
    return document(title, sentence(shown), body, _origin(shown))


def document(title: str, description: str, content: Markup, *meta: Markup) -> str:
    """Return a page with this content, and with more elements `meta` in its head."""
    script = verbatim(f"<script>{_content('page.js')}</script>")
    body = element("body", content, script)
    return f"<!DOCTYPE html>\n{element('html', _head(title, description, *meta), body, lang='en')}\n"


def _head(title: str, description: str, *more: Markup) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        more,
        element("title", title),
        element("meta", name="description", content=description),
        verbatim(f"<style>{_content('page.css')}</style>"),
    )


def _origin(runs: Sequence[ReportedRun]) -> Markup:
    """Return what `written_again` needs to compute the page of a single run again."""
    if len(runs) != 1:
        return NOTHING
    audit = runs[0].audit
    key = audit.integrity.key if audit.integrity.expected else ""
    return joined(
        element("meta", name=_PATH, content=audit.subject.path),
        element("meta", name=_KEY, content=key or ""),
    )


def _body(runs: Sequence[ReportedRun], detail: sections.Detail, *, left: int) -> Markup:
    return joined(
        element("a", "Skip to the content", href="#main", class_="skip"),
        sections.top(runs, left=left),
        element(
            "main",
            sections.banners(runs),
            sections.cards(runs),
            (each.build(runs, detail) for each in sections.SECTIONS),
            id="main",
        ),
        sections.foot(),
    )


# --- style and script ---


def policy() -> str:
    """Return the page's content security policy: only its own style sheet and script are allowed, by hash."""
    return (
        f"default-src 'none'; style-src '{_hash('page.css')}'; script-src '{_hash('page.js')}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _content(name: str) -> str:
    return resources.files("sims.report").joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(_content(name).encode()).digest()).decode()}"


def write_report(path: Path, output: Path | None = None, *, server_key: bytes | None = None) -> Path:
    """Write the report of all runs in the directory `path` to `output`, by default a file in `path`. Return
    the file's path. `server_key` is the key that must have signed the runs. Raise `ConfigError` if there is
    no run, or if reading or writing fails."""
    where = path / REPORT if output is None else output
    if where.is_dir():
        raise ConfigError(f"{where} is a directory: give the name of a file, such as {where / REPORT}")
    replace_file(where, page(read_runs(path, server_key=server_key)).encode())
    return where


def with_page_checked(audit: Audit) -> Audit:
    """Return the audit of a run with a problem added if there is a page in its directory that does not follow
    from its records. No signature covers the page: it is computed again and compared. A run that goes on
    leaves its page behind; then this is only a remark."""
    found = Path(audit.subject.path) / REPORT
    if not audit.intact or not found.exists() or _written_again(found) == read_file(found, ""):
        return audit
    text = (
        f"{found} was altered, or is of another state of the run or version of the program: secagg report "
        "writes it again"
    )
    own = audit.integrity
    if audit.subject.status == RUNNING:
        return replace(audit, integrity=replace(own, remarks=(*own.remarks, text)))
    return replace(audit, integrity=replace(own, problems=(*own.problems, text)))


def _written_again(found: Path) -> bytes:
    """Return the page of the run, for the path and with the key that the page `found` names."""
    text = read_file(found, "").decode(errors="replace")
    path, key = (_meta(text, name) for name in (_PATH, _KEY))
    server_key = bytes.fromhex(key) if re.fullmatch("[0-9a-f]{64}", key) else None
    runs = read_runs(found.parent, server_key=server_key)
    return page([_named(each, path) for each in runs]).encode()


def _named(run: ReportedRun, path: str) -> ReportedRun:
    command = command_for(Path(path)) if run.audit.subject.command else ""
    subject = replace(run.audit.subject, path=path, command=command)
    return replace(run, audit=replace(run.audit, subject=subject))


def _meta(text: str, name: str) -> str:
    match = re.search(f'<meta name="{name}" content="([^"]*)">', text)
    return "" if match is None else html.unescape(match[1])

"""Builds the page of a report: a single HTML file that loads no other file.

Its content security policy allows only its own style sheet and script, by their hashes, so that no text of a
run can be executed as a script. The page is readable without the script, which adds tooltips, switches,
sorting and folding. The same runs always produce the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from sims.config_problems import ConfigError
from sims.records.run_directory import replace_file
from sims.records.run_file_names import REPORT
from sims.report import sections
from sims.report.headline import sentence
from sims.report.html_elements import Markup, element, joined, verbatim
from sims.report.reported_run import ReportedRun, read_runs
from sims.text_format import counted

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
    script = verbatim(f"<script>{_content('page.js')}</script>")
    body = element("body", _body(shown, detail, left=len(runs) - len(shown)), script)
    return f"<!DOCTYPE html>\n{element('html', _head(shown), body, lang='en')}\n"


def _head(runs: Sequence[ReportedRun]) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{runs[0].audit.subject.name} · report of {counted(len(runs), 'run')} · secagg"),
        element("meta", name="description", content=sentence(runs)),
        verbatim(f"<style>{_content('page.css')}</style>"),
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


def write_report(path: Path, output: Path | None = None) -> Path:
    """Write the report of all runs in the directory `path` to `output`, by default a file in `path`. Return
    the file's path. Raise `ConfigError` if there is no run, or if reading or writing fails."""
    where = path / REPORT if output is None else output
    if where.is_dir():
        raise ConfigError(f"{where} is a directory: give the name of a file, such as {where / REPORT}")
    replace_file(where, page(read_runs(path)).encode())
    return where

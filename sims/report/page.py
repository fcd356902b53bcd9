"""The page: one file with everything in it, which may load nothing from anywhere.

Its policy (CSP) forbids all but this style sheet and this script, by their hashes: even a label that became
an element could not run anything. All of it can be read without the script, which adds tooltips, switches,
sorting and folding. Nothing in it depends on when it is made: the same runs give the same bytes.
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
from sims.records.directory import replace_file
from sims.records.run_paths import REPORT
from sims.report import sections
from sims.report.chapter import Chapter, read_chapters
from sims.report.headline import sentence
from sims.report.html_tables import Markup, element, joined, verbatim
from sims.text_format import counted

MOST_BYTES: Final = 1_000_000
# Of long runs, and of many, less is drawn until the page is small enough.
_DETAILS: Final = ((240, 400, 24), (120, 150, 24), (60, 60, 24), (30, 20, 24), (20, 12, 12), (12, 12, 6))


def page(chapters: Sequence[Chapter], *, most_bytes: int = MOST_BYTES) -> str:
    """The page of one run, or of several that are compared, with as much detail as its size allows."""
    for places, rows, runs in _DETAILS:
        text = _page(chapters, sections.Detail(places, rows, runs))
        if len(text.encode()) < most_bytes:
            break
    return text


def _page(chapters: Sequence[Chapter], detail: sections.Detail) -> str:
    shown = chapters[: detail.runs]
    body = element("body", _body(shown, detail, left=len(chapters) - len(shown)), verbatim(_script()))
    return f"<!DOCTYPE html>\n{element('html', _head(shown), body, lang='en')}\n"


def _head(chapters: Sequence[Chapter]) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element(
            "title", f"{chapters[0].audit.subject.name} · report of {counted(len(chapters), 'run')} · secagg"
        ),
        element("meta", name="description", content=sentence(chapters)),
        verbatim(_style()),
    )


def _body(chapters: Sequence[Chapter], detail: sections.Detail, *, left: int) -> Markup:
    return joined(
        element("a", "Skip to the content", href="#main", class_="skip"),
        sections.top(chapters, left=left),
        element(
            "main",
            sections.banners(chapters),
            sections.cards(chapters),
            (each.build(chapters, detail) for each in sections.SECTIONS),
            id="main",
        ),
        sections.foot(),
    )


# --- style and script ---


def policy() -> str:
    """What the page may load: itself."""
    return (
        f"default-src 'none'; style-src '{_hash('page.css')}'; script-src '{_hash('page.js')}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _content(name: str) -> str:
    return resources.files("sims.report").joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(_content(name).encode()).digest()).decode()}"


def _style() -> str:
    return f"<style>{_content('page.css')}</style>"


def _script() -> str:
    return f"<script>{_content('page.js')}</script>"


def write_report(path: Path, output: Path | None = None) -> Path:
    """Write the page of the run, or of all runs, in a directory, and say where it is.

    Raises `ConfigError` if there is no run, if its files cannot be understood, or if nothing can be written.
    """
    where = path / REPORT if output is None else output
    if where.is_dir():
        raise ConfigError(f"{where} is a directory: give the name of a file, such as {where / REPORT}")
    replace_file(where, page(read_chapters(path)).encode())
    return where

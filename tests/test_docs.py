"""The documentation is current: examples run, diagrams are those of the code, links lead on. The sizes of
messages are checked in `test_docs_sizes`."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from papers.page import all_tables, filled, topics
from protocols.catalogue import CATALOGUE
from scripts import draw_states, list_algorithms, list_systems
from secagg import errors
from secagg import messages as m
from secagg.graph_parameters import ring_parameters
from sims.cli import main

ROOT = Path(__file__).resolve().parent.parent
MESSAGES: tuple[type[m.Message], ...] = (*m.FROM_SERVER, *m.FROM_CLIENT)
PAGES = (
    "README.md",
    "docs/protocol.md",
    "docs/threat-model.md",
    "docs/design.md",
    "docs/algorithms.md",
    "docs/training.md",
    "docs/report.md",
    "docs/scenarios.md",
    "docs/runs.md",
    "docs/sums.md",
    "papers/results.md",
    "docs/deployment.md",
    "docs/embedding.md",
    "docs/benchmarks.md",
    "docs/contributing.md",
    "CHANGELOG.md",
    "SECURITY.md",
)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, start: str, stop: str) -> str:
    """What stands between two lines of a page."""
    return read(page).split(start, 1)[1].split(stop, 1)[0]


# --- examples of the README and of the page on sums --------------------------------------------------

BY_HAND = ("README.md", "docs/sums.md")
EXAMPLES = [
    (page, code)
    for page in BY_HAND
    for code in re.findall(r"^```python\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)
]
_NUMBERED = [f"{page}-{number}" for number, (page, _) in enumerate(EXAMPLES)]


def test_both_pages_have_examples() -> None:
    assert [page for page, _ in EXAMPLES] == ["README.md"] * 2 + ["docs/sums.md"] * 3


def test_the_first_example_is_20_lines_at_most() -> None:
    assert sum(bool(line.strip()) for line in EXAMPLES[0][1].splitlines()) <= 20


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=_NUMBERED)
def test_an_example_runs(page: str, code: str) -> None:
    exec(compile(code, page, "exec"), {"__name__": "__example__"})  # noqa: S102  (the repository's own text)


SHOWN = [
    found
    for page in BY_HAND
    for found in re.findall(r"^    \$ secagg (.*)\n((?:    (?!\$).+\n)+)", read(page), re.MULTILINE)
]


def test_there_are_commands_with_their_output() -> None:
    assert {command.split()[0] for command, _ in SHOWN} == {"plan", "noise", "params"}


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_prints_what_a_page_shows(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 0
    assert capsys.readouterr().out == textwrap.dedent(shown)


def test_the_examples_of_training_run() -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", read("docs/training.md"), re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    exec(compile("\n".join(examples), "docs/training.md", "exec"), {"__name__": "__example__"})  # noqa: S102


# --- the results -------------------------------------------------------------------------------------


def test_tables_are_those_of_the_results() -> None:
    page = read("papers/results.md")
    assert filled(page, all_tables(ROOT / "papers" / "results")) == page, "run make figures"


@pytest.mark.slow  # every topic draws its own in its own tests
def test_figures_are_those_of_the_results(tmp_path: Path) -> None:
    """All but what matplotlib writes differently from version to version: which ones there are."""
    for topic in topics().values():
        topic.figures(ROOT / "papers" / "results", tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (ROOT / "papers" / "figures").iterdir()}
    assert drawn == set(re.findall(r"\(figures/([\w.-]+)\)", read("papers/results.md")))


# --- the algorithms ----------------------------------------------------------------------------------

NEW_ALGORITHM = section("docs/algorithms.md", "<!-- example -->\n```python\n", "```\n<!-- end of example -->")


def test_an_algorithm_is_added_in_under_60_lines() -> None:
    assert NEW_ALGORITHM.count("\n") < 60


def test_the_new_algorithm_works_as_the_page_says() -> None:
    names: dict[str, Any] = {"__name__": "__example__"}
    exec(compile(NEW_ALGORITHM, "docs/algorithms.md", "exec"), names)  # noqa: S102  (the repository's own text)
    assert all(report.completed for report in names["reports"])
    assert names["run"].model == pytest.approx([1.0, -1.0, 2.0], abs=0.051)


def test_the_table_of_algorithms_is_current() -> None:
    page = read("docs/algorithms.md")
    assert list_algorithms.redraw(page) == page, "run python scripts/list_algorithms.py"


def test_the_overview_in_the_readme_is_current() -> None:
    page = read("README.md")
    assert list_algorithms.redraw(page, list_algorithms.overview()) == page, "run scripts/list_algorithms.py"


def test_a_stale_table_of_algorithms_is_noticed() -> None:
    page = read("docs/algorithms.md")
    stale = page.replace("| `rfa` | 3 |", "| `rfa` | 2 |")
    assert stale != page
    assert list_algorithms.redraw(stale) == page


# --- the table of systems ---------------------------------------------------------------------------


def test_the_table_of_systems_is_current() -> None:
    page = read("docs/algorithms.md")
    assert list_systems.redraw(page) == page, "run python -m scripts.list_systems"


def test_every_algorithm_of_the_catalogue_is_some_paper_s_or_said_not_to_be() -> None:
    """TERM is a baseline that the papers' references use; all others are named by one of them."""
    assert CATALOGUE.keys() - {each.entry for each in list_systems.systems()} == {"term"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"papers": ("plus",)}, "either an entry or a reason"),
        ({"papers": ("plus",), "entry": "rfa", "why": "no"}, "either an entry or a reason"),
        ({"papers": (), "entry": "rfa"}, "papers are"),
        ({"papers": ("other",), "entry": "rfa"}, "papers are"),
    ],
)
def test_a_system_that_is_listed_wrongly(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list_systems.System("X", **fields)


# --- the diagrams ------------------------------------------------------------------------------------


def test_diagrams_are_current() -> None:
    page = read("docs/protocol.md")
    assert draw_states.redraw(page) == page, "run python scripts/draw_states.py"


def test_stale_diagram_is_noticed() -> None:
    page = read("docs/protocol.md").replace("ready --> asked: Query", "ready --> masked: Query")
    assert draw_states.redraw(page) != page


def test_missing_diagram_is_noticed() -> None:
    page = read("docs/protocol.md").replace("<!-- states: client-curious_server -->", "")
    with pytest.raises(ValueError, match="the page has the diagrams"):
        draw_states.redraw(page)


@pytest.mark.parametrize("stale", [True, False])
def test_check_writes_nothing(
    stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = read("docs/protocol.md")
    page = tmp_path / "protocol.md"
    page.write_text(text.replace(": Query", ": Question") if stale else text, encoding="utf-8")
    before = page.read_bytes()
    monkeypatch.setattr(draw_states, "PAGE", page)

    assert draw_states.main(["--check"]) == stale
    assert page.read_bytes() == before
    assert ("stale" in capsys.readouterr().out) == stale


def test_redrawing_repairs_a_stale_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = read("docs/protocol.md")
    page = tmp_path / "protocol.md"
    page.write_text(text.replace(": Query", ": Question"), encoding="utf-8")
    monkeypatch.setattr(draw_states, "PAGE", page)

    assert draw_states.main([]) == 0
    assert page.read_text(encoding="utf-8") == text


# --- figures ------------------------------------------------------------------------------------------


def test_neighbours_in_the_design_record() -> None:
    """5 % collude, 10 % drop out."""
    few, many = (ring_parameters(n, corrupt=n // 20, dropped=n // 10).neighbours for n in (1000, 10_000))
    page = " ".join(read("docs/design.md").split())
    assert f"{few} for 1000 clients of whom 5 % collude and 10 % drop out, {many} for 10,000" in page


# --- names and links ---------------------------------------------------------------------------------


def test_every_message_is_specified_with_its_number() -> None:
    page = section("docs/protocol.md", "## 7 Messages", "## 8 ")
    rows = {(int(code), name) for code, name in re.findall(r"^\| (\d+) \| `(\w+)`", page, re.MULTILINE)}
    assert rows == {(kind.TYPE, kind.__name__) for kind in MESSAGES}


def test_every_peer_error_is_specified() -> None:
    bases = (errors.PeerError, errors.PolicyError, errors.Lie)
    names = {kind.__name__ for base in bases for kind in base.__subclasses__() if kind not in bases}
    page = read("docs/protocol.md")
    assert {name for name in names if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("page", PAGES)
def test_error_names_exist(page: str) -> None:
    """Whatever stands in the last column of a table as a class is an error or a message."""
    cells = re.findall(r"\| (?:excluded: )?((?:`[A-Z]\w+`(?:, )?)+) \|$", read(page), re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"\w+", cell)}
    known = {*vars(errors), *(kind.__name__ for kind in MESSAGES)}
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", read(page)) if "://" not in t]
    files = {target.partition("#")[0] for target in targets} - {""}
    assert [name for name in files if not ((ROOT / page).parent / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_anchors_lead_to_headings(page: str) -> None:
    for target in re.findall(r"\]\(([^)]*#[^)]+)\)", read(page)):
        name, _, anchor = target.partition("#")
        path = ROOT / page if not name else (ROOT / page).parent / name
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs

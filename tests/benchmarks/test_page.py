"""``python -m benchmarks --write``: a page with every section, whose numbers are those of a survey."""

import json
import platform
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import page, peers, plots, primitives, repeats
from benchmarks import page_measurements as surveys
from benchmarks.__main__ import main
from benchmarks.markdown import prose, significant, table
from benchmarks.page import page_text
from benchmarks.page_measurements import Survey
from benchmarks.page_plan import FULL, LONG, QUICK, Plan
from benchmarks.peers import Row
from sims.console_progress import OnProgress
from tests.benchmarks.reports import FLOWER, made_up_survey, without_flower

pytestmark = pytest.mark.slow  # measures real sums

HEADINGS = [
    "Benchmarks",
    "The machine",
    "What is measured",
    "The bars",
    "Beside Flower's SecAgg+",
    "Against the length of the vector",
    "Against the number of clients",
    "Packing, at every number of bits",
    "What the time is spent on",
    "How to repeat it",
]
PLOTS = ["benchmarks-dim.svg", "benchmarks-clients.svg", "benchmarks-packing.svg"]


def text_of(found: Survey) -> str:
    return page_text(found, "benchmarks")


def in_one_line(text: str) -> str:
    return " ".join(text.split())


# --- the page ---


def test_page_has_every_section() -> None:
    for found in (made_up_survey(), without_flower()):
        assert re.findall(r"^#+ (.*)$", text_of(found), re.MULTILINE) == HEADINGS


def test_page_of_real_sizes_is_no_rehearsal() -> None:
    found = made_up_survey()

    assert page.REHEARSAL in text_of(found)
    assert page.REHEARSAL not in text_of(replace(found, plan=replace(QUICK, rehearsal=False)))


def test_plots_have_texts_that_tell_the_same() -> None:
    texts = re.findall(r"!\[(.*?)\]", text_of(made_up_survey()))

    assert len(texts) == len(PLOTS)
    assert "from 10 to 100 elements, a client's masking goes from 1,400 to 1,400 ms" in texts[0]
    assert "from 8 to 16 clients, a client's set-up goes from 4,000 to 6,000 ms" in texts[1]
    assert "at most 64.0 ns per element, at 64 bits" in texts[2]
    assert "at most 99.0 ns, at 1 bits" in texts[2]


def test_tables_are_whole() -> None:
    """Every row has the cells of its head."""
    tables = re.findall(r"(?:^\|.*\n)+", text_of(made_up_survey()), re.MULTILINE)

    assert len(tables) == 6
    assert all(len({row.count("|") for row in each.splitlines()}) == 1 for each in tables)


def test_numbers_are_those_of_the_survey() -> None:
    text = text_of(made_up_survey())

    assert "| Some CPU, 2 cores |" in text
    assert "| 1,400 ms / 1,000 ms = 1.40 | at most 1.4 | holds |" in text
    assert "| 102 / 100 = 1.0200 | at most 1.02 | holds |" in text
    # The best of the runs by the clock.
    assert "| 65,000 ms / 100,000 ms = 0.650 | at most 0.65 | holds |" in text
    assert "| 640,000 ms / 12,800 ms = 50.0 | at least 50 | holds |" in text
    assert "| 10 | 4,000 | 1,400 | 1,000 | 1,600 | 1,000 | 1.020 | 0.00100 |" in text
    assert "| DH: X25519 | 250 | 500 |" in text


def test_commands_of_the_page_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are understood as they stand, and ask for the sums that the page tells of."""
    commands = re.findall(r"^    python -m benchmarks (.*)$", text_of(made_up_survey()), re.MULTILINE)
    asked: list[Any] = []

    def remember(setting: Any, _: object) -> Any:
        asked.append(setting)
        return SimpleNamespace(as_json=dict)

    for module in (peers, primitives):
        monkeypatch.setattr(module, "measure", remember)
    monkeypatch.setattr(repeats, "measure_often", lambda setting, bar, runs: remember(setting, (bar, runs)))
    assert [main(command.split()) for command in commands] == [0] * 9

    settings = [QUICK.lengths.sum_of(QUICK.long_dim), QUICK.narrow, QUICK.in_processes(2), QUICK.noisy]
    settings += [QUICK.crowd, *(QUICK.cohort(clients) for clients in QUICK.compared)]
    assert asked == [*settings, QUICK.lengths, QUICK.primitives]


# --- Flower on the page ---


def test_flower_beside_us() -> None:
    text = in_one_line(text_of(made_up_survey()))

    assert "flwr 9.9" in text
    assert "| 10 | 5,400 | 120,000 | 22.2 |" in text
    assert "Our totals equal the plain sums" in text
    assert "means are within their rounding" in text
    assert "What the ratios mean, and what they do not." in text
    assert "went no further" not in text


def test_page_without_flower() -> None:
    text = text_of(without_flower())

    assert "Not measured in this run. Flower is not here." in text
    assert "What the ratios mean" not in text


def test_page_with_a_flower_that_gave_up() -> None:
    text = text_of(replace(made_up_survey(), absent="Flower was ended", majority=None))

    assert "Flower went no further: Flower was ended." in text
    assert "the majority" not in text


@pytest.mark.parametrize(
    ("seconds", "said", "word"),
    [(0.7, "700", "as fast"), (0.4, "400", "faster"), (0.9, "900", "slower")],
)
def test_flower_with_its_usual_threshold(seconds: float, said: str, word: str) -> None:
    found = made_up_survey()
    asked = replace(FLOWER, server_unmask_cpu_s=0.64)
    majority = replace(FLOWER, server_unmask_cpu_s=seconds)

    text = in_one_line(
        text_of(replace(found, rows=[Row(row.ours, asked) for row in found.rows], majority=majority))
    )

    assert f"With 4, the majority that is usual there, its server is {word} at d = 10" in text
    assert f"{said} instead of 640 ms of unmasking" in text


def test_wrong_totals_stand_out() -> None:
    found = made_up_survey()
    rows = [Row(replace(row.ours, exact=False), replace(FLOWER, error=9.0)) for row in found.rows]

    text = text_of(replace(found, rows=rows))

    assert "**differ from**" in text
    assert "**not within**" in text


# --- the files ---


def test_files_lie_beside_the_page_and_name_no_place(tmp_path: Path) -> None:
    page.write_page(made_up_survey(), tmp_path / "benchmarks.md")

    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((.*?)\)", text) == PLOTS
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["benchmarks.md", *PLOTS])
    drawn = "".join((tmp_path / plot).read_text(encoding="utf-8") for plot in PLOTS)
    root = Path(__file__).parents[2]
    for place in (tmp_path, root, Path.home()):
        assert f"{place}/" not in text + drawn
    assert not re.search(rf"\b{re.escape(platform.node())}\b", text)


def draw(found: Survey, folder: Path, prefix: str) -> None:
    plots.draw_all(found, lambda name: folder / f"{prefix}-{name}.svg")


def test_plots_are_small_and_the_same_every_time(tmp_path: Path) -> None:
    for number in (1, 2):
        draw(made_up_survey(), tmp_path, str(number))

    for name in ("dim", "clients", "packing"):
        first, second = ((tmp_path / f"{number}-{name}.svg").read_bytes() for number in (1, 2))
        assert first == second
        assert 1000 < len(first) < 150_000
        assert b"<dc:date>" not in first


def test_plots_show_flower_where_it_was_measured(tmp_path: Path) -> None:
    draw(made_up_survey(), tmp_path, "with")
    draw(without_flower(), tmp_path, "without")

    both, alone = ((tmp_path / f"{name}-dim.svg").read_text(encoding="utf-8") for name in ("with", "without"))
    assert "Flower: unmask" in both
    assert "Flower" not in alone


# --- numbers ---


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (0.0012345, "0.00123"),
        (0.9999, "1.00"),
        (9.994, "9.99"),
        (9.999, "10.0"),
        (12.34, "12.3"),
        (999.9, "1,000"),
        (1234.6, "1,235"),
        (-0.5, "-0.500"),
    ],
)
def test_three_digits(number: float, text: str) -> None:
    assert significant(number) == text


def test_table_ends_numbers_below_each_other() -> None:
    assert table(("what", "ms"), [("mask", "1.0")]) == "| what | ms |\n| :-- | --: |\n| mask | 1.0 |"


def test_prose_is_one_paragraph_of_short_lines() -> None:
    text = prose("\n        client-server   " * 20)

    assert text.split() == ["client-server"] * 20
    assert {len(line) for line in text.splitlines()} == {7 * 14 - 1, 6 * 14 - 1}


# --- the command ---


class FakeSurvey:
    """Remembers the plan, and has found what it was told."""

    def __init__(self, found: Survey) -> None:
        self.asked: list[Plan] = []
        self._found = found

    def __call__(self, plan: Plan, _: OnProgress) -> Survey:
        self.asked.append(plan)
        return self._found


@pytest.mark.parametrize(("option", "plan"), [((), FULL), (("--long",), LONG), (("--quick",), QUICK)])
def test_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: tuple[str, ...],
    plan: Plan,
) -> None:
    fake = FakeSurvey(made_up_survey())
    monkeypatch.setattr(surveys, "survey", fake)

    assert main(["--write", str(tmp_path / "costs.md"), *option]) == 0

    assert fake.asked == [plan]
    assert capsys.readouterr() == ("all 17 bars hold\n", "")
    assert "](costs-dim.svg)" in (tmp_path / "costs.md").read_text(encoding="utf-8")
    assert (tmp_path / "costs-dim.svg").exists()


def test_write_without_flower_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(surveys, "survey", FakeSurvey(without_flower()))

    assert main(["--write", str(tmp_path / "costs.md"), "--json"]) == 0

    out, err = capsys.readouterr()
    assert err == "python -m benchmarks: Flower is not here\n"
    assert json.loads(out) == json.loads(json.dumps(without_flower().as_json()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--write", "no-such-folder/page.md"), "there is no folder no-such-folder"),
        (("--write", "."), "cannot write to ."),
        (("--quick",), "--quick goes with --write"),
        (("--long",), "--long goes with --write"),
        (("--long", "sum"), "--long goes with --write"),
        (("--write", "page.md", "sum"), "leave out --write or sum"),
        (("--write", "page.md", "--long", "--quick"), "not allowed with argument"),
    ],
)
def test_bad_argument_is_one_sentence_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    sentence: str,
) -> None:
    fake = FakeSurvey(made_up_survey())
    monkeypatch.setattr(surveys, "survey", fake)
    monkeypatch.chdir(tmp_path)

    assert main([*options]) == 2

    out, err = capsys.readouterr()
    assert (out, fake.asked, list(tmp_path.iterdir())) == ("", [], [])
    assert sentence in err
    assert err.count("\n") == 1

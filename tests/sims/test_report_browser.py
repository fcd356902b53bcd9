"""The page of a run in a real browser: it renders, loads nothing, and what can be used works.

All of it in one module, so that a worker of the test suite starts one browser at most. Without a browser,
these tests are skipped, but never where continuous integration runs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sims.report import page
from tests.sims.browser import Browser, browser, missing
from tests.sims.report_runs import reported_run

pytestmark = pytest.mark.skipif(
    missing() is not None and os.environ.get("CI") != "true", reason=f"{missing()}"
)

# Every text that can be seen, with the contrast of its colour to what is behind it.
CONTRASTS = """
const numbers = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = (rgb) => {
  const [r, g, b] = rgb.slice(0, 3).map((each) => {
    const share = each / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0.99) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
  if (!text || ["SCRIPT", "STYLE"].includes(node.tagName) || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const colour = numbers(node.closest("svg") ? style.fill : style.color);
  const [a, b] = [light(colour), light(ground(node))].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), text.slice(0, 40)]);
}
return found;
"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "one.html"
    path.write_text(page([reported_run("RFA", noise=True, seed="ab" * 32, rounds=30)]))
    return path


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "several.html"
    names = {"FedAvg": 0.43, "<script>alert(1)</script>": 0.9, "FedGeoMed+": 0.94}
    path.write_text(page([reported_run(name, accuracy=accuracy) for name, accuracy in names.items()]))
    return path


@pytest.fixture(autouse=True)
def _as_usual(window: Browser) -> None:
    window.resize(1280)
    window.prefer(color_scheme="light")


def _opened(window: Browser, path: Path) -> Browser:
    """Afresh, without what the page before has kept."""
    window.open(path)
    window.run("try { localStorage.clear() } catch {}")
    window.open(path)
    return window


@pytest.mark.parametrize("which", ["one", "several"])
def test_it_renders_without_a_word_in_the_console_and_without_a_request(
    which: str, window: Browser, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    _opened(window, path)
    assert window.console() == []
    assert window.requests() == [path.as_uri()]
    drawn = window.run(
        "return [...document.querySelectorAll('figure .plot')]"
        ".map((each) => each.getBoundingClientRect().height)"
    )
    assert len(drawn) >= 7
    assert all(height > 100 for height in drawn)
    marks = window.run("return document.querySelectorAll('.plot .series path, .plot .series rect').length")
    assert marks > 20


def test_the_policy_refuses_whatever_gets_in_all_the_same(window: Browser, one: Path) -> None:
    _opened(window, one)
    window.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">');"
        "const script = document.createElement('script'); script.textContent = 'window.broken = 1';"
        "document.body.append(script);"
    )
    assert window.run("return window.broken ?? null") is None
    assert any("Content Security Policy" in line for line in window.console())


def test_values_are_shown_at_the_pointer(window: Browser, one: Path) -> None:
    _opened(window, one).point("#accuracy .plot", x=0.95)
    tip = window.run("return document.querySelector('#accuracy .tip').innerText")
    last = window.run("return document.querySelector('#accuracy .numbers tbody tr:last-child').innerText")
    assert tip.startswith("Round 30")
    assert window.run("return document.querySelector('#accuracy .tip').hidden") is False
    assert window.run("return document.querySelectorAll('#accuracy .dots circle').length") == 4
    assert "Common model, benign clients" in tip
    window.point("h1")
    assert window.run("return document.querySelector('#accuracy .tip').hidden") is True
    assert last == ""  # the table is folded away


def test_values_are_reached_by_the_keyboard_alone(window: Browser, one: Path) -> None:
    _opened(window, one)
    for _ in range(30):
        window.press("Tab")
        if window.run("return document.activeElement.closest('#accuracy .canvas') !== null"):
            break
    tip = "return document.querySelector('#accuracy .tip').innerText"
    assert window.run(tip).startswith("Round 0")
    window.press("Right", "Right", "Left")
    assert window.run(tip).startswith("Round 3\n")
    window.press("End")
    assert window.run(tip).startswith("Round 30")
    assert window.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.press("Escape")
    assert window.run("return document.querySelector('#accuracy .tip').hidden") is True


def test_bars_have_values_too(window: Browser, one: Path) -> None:
    _opened(window, one).point("#bytes .plot")
    assert "Masked vectors" in window.run("return document.querySelector('#bytes .tip').innerText")


def test_names_of_a_legend_switch_their_series(window: Browser, several: Path) -> None:
    button = "#errors .legend li:nth-child(2) button"
    shown = (
        "return [...document.querySelectorAll('#errors .plot .series')]"
        ".map((each) => !each.classList.contains('off'))"
    )
    _opened(window, several).point(button, click=True)
    assert window.run(shown) == [True, False, True]
    assert window.run(f"return document.querySelector('{button}').getAttribute('aria-pressed')") == "false"
    window.point("#errors .plot")
    assert "script" not in window.run("return document.querySelector('#errors .tip').innerText")
    window.point(button, click=True)
    assert window.run(shown) == [True, True, True]


def test_tables_are_sorted_and_unfolded(window: Browser, one: Path) -> None:
    column = (
        "return [...document.querySelectorAll('#releases tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => Number(row.cells[arguments[0]].dataset.v))"
    )
    head = "#releases thead th:nth-child(7) button"
    _opened(window, one)
    assert window.run(column, 0) == list(range(1, 13))
    window.point(head, click=True)
    window.point(head, click=True)
    assert window.run("return document.querySelector('#releases [aria-sort]').ariaSort") == "descending"
    window.point("#releases + .more", click=True)
    everything = window.run(column, 6)
    assert len(everything) == 89
    assert everything == sorted(everything, reverse=True)
    assert window.run("return document.querySelector('#releases + .more').textContent") == "Show fewer"


def test_the_theme_is_the_systems_until_somebody_chooses(window: Browser, one: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    _opened(window, one)
    light = window.run(ground)
    window.prefer(color_scheme="dark")
    dark = window.run(ground)
    assert dark != light
    window.point("#theme", click=True)
    assert window.run(ground) == light
    assert window.run("return document.querySelector('#theme').textContent") == "Dark theme"
    window.open(one)
    assert window.run(ground) == light  # the choice is kept


@pytest.mark.parametrize("which", ["one", "several"])
def test_a_phone_needs_no_scrolling_sideways(
    which: str, window: Browser, request: pytest.FixtureRequest
) -> None:
    window.resize(360, 740)
    _opened(window, request.getfixturevalue(which))
    window.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert window.run("return document.documentElement.scrollWidth") == 360
    smallest = window.run(
        "return Math.min(...[...document.querySelectorAll('.plot text')].map((each) =>"
        " parseFloat(getComputedStyle(each).fontSize) * each.ownerSVGElement.getBoundingClientRect().width"
        " / each.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert smallest > 9


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_told_from_what_is_behind_it(scheme: str, window: Browser, one: Path) -> None:
    window.prefer(color_scheme=scheme)
    _opened(window, one)
    found = window.run(CONTRASTS)
    assert len(found) > 300
    assert [each for each in found if each[0] < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_colours_of_series_can_be_told_from_the_sheet(scheme: str, window: Browser, one: Path) -> None:
    window.prefer(color_scheme=scheme)
    _opened(window, one)
    window.run(
        "for (let k = 0; k < 8; k++) { const each = document.createElement('i'); each.textContent = 'x' + k;"
        " each.className = 'c' + k; each.style.color = 'var(--c)';"
        " document.querySelector('.figure').append(each); }"
    )
    found = {
        text: contrast for contrast, text in window.run(CONTRASTS) if text in {f"x{k}" for k in range(8)}
    }
    assert len(found) == 8
    assert min(found.values()) >= 3


def test_who_prefers_less_motion_gets_none(window: Browser, one: Path) -> None:
    window.prefer(reduced_motion="reduce")
    _opened(window, one)
    assert window.run("return getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert window.run("return getComputedStyle(document.querySelector('.series')).transitionDuration") == "0s"


def test_without_scripts_everything_can_be_read(window: Browser, one: Path) -> None:
    window.scripts(on=False)
    try:
        window.open(one)
        # The driver's own scripts run in any case.
        rows = window.run(
            "return [...document.querySelectorAll('#releases tbody tr')].filter((r) => !r.hidden).length"
        )
        assert rows == 89
        assert window.run("return document.querySelectorAll('button:not([hidden])').length") == 0
        assert window.run("return document.querySelectorAll('figure .numbers tbody tr').length") > 50
    finally:
        window.scripts(on=True)

"""Plots are made, say what they were told to, and are the same when drawn again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch

from papers.plots import FigureError, Labels, Panel, bars, draw, heat, histogram, lines, scatter
from papers.plots.labels import looks

LABELS = Labels(x="along", y="upwards", title="above")
ROUNDS = [0, 10, 20]
RUNS = np.array([[1.0, 2.0, 4.0], [3.0, 4.0, 6.0]])


def example_lines() -> Panel:
    return lines(
        {"FedAvg": (ROUNDS, RUNS), "RFA": (ROUNDS, [3.0, 4.0, np.inf])}, LABELS, levels={"best": 5.0}
    )


def example_histogram() -> Panel:
    return histogram({"FedAvg": [1.0, 2.0, 9.0], "RFA": [2.0, 3.0]}, LABELS)


def example_bars() -> Panel:
    return bars(
        ["few", "many"],
        {"FedAvg": [1.0, 2.0], "RFA": [2.0, np.nan]},
        LABELS,
        errors={"FedAvg": [0.1, 0.2]},
        published={"FedAvg": [1.1, 2.1], "RFA": [2.2, 2.3]},
    )


def example_scatter() -> Panel:
    return scatter({"FedAvg": ([10, 100], [1, 2]), "RFA": ([20, 30], [2, 3])}, LABELS)


def example_heat() -> Panel:
    return heat(
        [[1.25, np.nan], [3.0, 4.0]], LABELS, rows=["low", "high"], columns=["left", "right"], what="worth"
    )


EXAMPLES: dict[str, tuple[Callable[[], Panel], tuple[str, ...]]] = {
    "lines": (example_lines, ("FedAvg", "RFA", "best")),
    "histogram": (example_histogram, ("FedAvg (percentile 90: 7.6)", "RFA (percentile 90: 2.9)")),
    "bars": (example_bars, ("FedAvg", "RFA", "published", "few", "many")),
    "scatter": (example_scatter, ("FedAvg", "RFA")),
    "heat": (example_heat, ("low", "high", "left", "right", "worth", "1.2", "4.0")),
}


def on_axes(panel: Panel) -> Axes:
    """What a panel draws, to be looked at."""
    axes = Figure().add_subplot()
    panel(axes)
    return axes


def texts(path: Path) -> list[str]:
    """Letters are drawn as shapes; in front of each text is a comment with it."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))


def shape(path: Path) -> tuple[float, float]:
    """Width and height."""
    (sizes,) = re.findall(r'viewBox="0 0 (\S+) (\S+)"', path.read_text(encoding="utf-8"))
    return float(sizes[0]), float(sizes[1])


# --- files ---


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_plot_says_what_it_was_told_and_is_the_same_again(name: str, tmp_path: Path) -> None:
    example, expected = EXAMPLES[name]
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"

    draw(first, example())
    # What a user configured, or another plot left behind, changes nothing.
    with mpl.rc_context({"font.size": 31, "axes.facecolor": "black", "svg.hashsalt": "other"}):
        draw(second, example())

    assert first.read_bytes() == second.read_bytes()
    shown = texts(first)
    for text in ("along", "upwards", "above", *expected):
        assert text in shown
    assert b"<dc:date>" not in first.read_bytes()


def test_drawing_leaves_the_settings_of_others_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)

    draw(tmp_path / "plot.svg", example_scatter())

    assert dict(mpl.rcParams) == before


def test_another_figure_makes_another_file(tmp_path: Path) -> None:
    for name, top in (("first", 1.0), ("second", 2.0)):
        draw(tmp_path / f"{name}.svg", lines({"FedAvg": ([0, 1, 2], [0, top, 0.5])}, LABELS))

    assert (tmp_path / "first.svg").read_bytes() != (tmp_path / "second.svg").read_bytes()


def test_a_picture_is_the_same_again_too(tmp_path: Path) -> None:
    for name in ("first", "second"):
        draw(tmp_path / f"{name}.png", example_scatter())

    first, second = ((tmp_path / f"{name}.png").read_bytes() for name in ("first", "second"))
    assert first.startswith(b"\x89PNG")
    assert first == second


def test_panels_with_the_same_series_share_a_legend(tmp_path: Path) -> None:
    both, apart = tmp_path / "both.svg", tmp_path / "apart.svg"
    alone = scatter({"FedAvg": ([1], [1])}, LABELS)

    draw(both, example_scatter(), example_lines_of("FedAvg", "RFA"))
    draw(apart, example_scatter(), alone)

    assert texts(both).count("FedAvg") == 1
    assert texts(apart).count("FedAvg") == 2
    assert texts(both).count("above") == 2


def example_lines_of(*names: str) -> Panel:
    return lines(dict.fromkeys(names, (ROUNDS, RUNS)), LABELS)


def test_panels_are_put_in_rows(tmp_path: Path) -> None:
    alone = scatter({"FedAvg": ([1], [1])}, LABELS)
    for columns in (1, 3):
        draw(tmp_path / f"{columns}.svg", *[alone] * 3, columns=columns)

    for columns, ratio in ((1, 3 * 3.8 / 5.6), (3, 3.8 / 11.6)):
        width, height = shape(tmp_path / f"{columns}.svg")
        assert height / width == pytest.approx(ratio)


# --- what is drawn ---


def test_a_line_is_the_mean_of_the_runs_in_a_band() -> None:
    axes = on_axes(lines({"FedAvg": (ROUNDS, RUNS)}, LABELS))

    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[0, 2], [10, 3], [20, 5]])  # type: ignore[arg-type]
    band = axes.collections[0].get_paths()[0].vertices
    assert np.asarray(band)[:, 1].min() == pytest.approx(2 - np.sqrt(2))
    assert np.asarray(band)[:, 1].max() == pytest.approx(5 + np.sqrt(2))


def test_a_band_may_go_from_the_least_to_the_greatest() -> None:
    axes = on_axes(lines({"FedAvg": (ROUNDS, RUNS)}, LABELS, band="range"))

    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert (band[:, 1].min(), band[:, 1].max()) == (1, 6)


def test_one_run_has_no_band_and_a_gap_where_it_diverged() -> None:
    axes = on_axes(lines({"FedAvg": (ROUNDS, [1.0, np.inf, np.nan])}, LABELS))

    assert not axes.collections
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1.0, np.nan, np.nan])


def test_scales_are_logarithmic_where_asked_and_plainly_labelled() -> None:
    axes = on_axes(scatter({"FedAvg": ([1, 1000], [1, 2])}, Labels(x="samples", y="weight", log="x")))

    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert axes.xaxis.get_major_formatter()(1000) == "1,000"
    assert on_axes(lines({"a": ([1], [1])}, Labels(x="x", y="y", log="xy"))).get_yscale() == "log"


def test_a_histogram_shows_shares_of_clients_in_common_bins() -> None:
    axes = on_axes(histogram({"FedAvg": [0, 1, 1, 4], "RFA": [2, 3]}, LABELS, bins=2, mark=None))

    steps = {each.get_label(): each.get_data() for each in axes.patches if isinstance(each, StepPatch)}
    for name, shares in (("FedAvg", [75, 25]), ("RFA", [0, 100])):
        heights, edges, _ = steps[name]
        np.testing.assert_allclose(heights, shares)
        np.testing.assert_allclose(edges, [0, 2, 4])
    assert not axes.lines


def test_bars_stand_side_by_side_on_the_bottom() -> None:
    axes = on_axes(bars(["a", "b"], {"x": [82, 84], "y": [83, np.nan]}, LABELS, bottom=80))

    boxes = [patch.get_bbox() for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [(box.y0, box.y1) for box in boxes] == [(80, 82), (80, 84), (80, 83)]
    assert boxes[0].x1 < boxes[2].x0 < boxes[2].x1 < boxes[1].x0
    assert axes.get_ylim()[0] == 80


def test_bars_below_zero_hang() -> None:
    axes = on_axes(bars(["a", "b"], {"x": [1, -2]}, LABELS))

    assert axes.get_ylim()[0] < -2


def test_heat_has_the_first_row_on_top_and_numbers_that_can_be_read() -> None:
    axes = on_axes(example_heat())

    assert axes.yaxis_inverted()
    numbers = {each.get_text(): each.get_color() for each in axes.texts}
    assert numbers == {"1.2": "white", "3.0": "black", "4.0": "black"}
    (mesh,) = (each for each in axes.collections if isinstance(each, QuadMesh))
    colours = mesh.get_array()
    assert colours is not None
    assert np.ma.getmaskarray(colours).tolist() == [[False, True], [False, False]]


def test_texts_are_taken_literally(tmp_path: Path) -> None:
    draw(tmp_path / "plot.svg", scatter({"costs $5 or $6": ([1], [1])}, LABELS))

    assert "costs $5 or $6" in texts(tmp_path / "plot.svg")


# --- looks ---


def test_a_name_looks_the_same_in_all_figures() -> None:
    everything = ["FedAvg", "RFA", "FedBC"]

    assert looks(["RFA"], everything) == {"RFA": looks(everything)["RFA"]}
    alone = on_axes(lines({"RFA": (ROUNDS, RUNS)}, LABELS, names=everything))
    assert to_rgba(alone.lines[0].get_color()) == to_rgba(looks(everything)["RFA"].colour)


def test_many_series_stay_apart_with_colours_or_without() -> None:
    found = list(looks([f"method {number}" for number in range(36)]).values())

    assert len(set(found)) == 36
    assert len({each.colour for each in found[:7]}) == 7
    assert len({(each.marker, each.dash) for each in found}) == 36


# --- what cannot be drawn ---

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no series": (lambda: lines({}, LABELS), "at least one series"),
    "no clients": (lambda: histogram({"a": []}, LABELS), "a: give a list with at least one number"),
    "no bins": (lambda: histogram({"a": [1]}, LABELS, bins=0), "at least 1"),
    "NaN clients": (lambda: histogram({"a": [1, np.nan]}, LABELS), "a: not all numbers are finite"),
    "another length": (lambda: lines({"a": ([1, 2], [1])}, LABELS), "a: give one row of 2 numbers"),
    "nothing finite": (lambda: lines({"a": ([1, 2], [np.nan, np.inf])}, LABELS), "a: there is no number"),
    "no place": (lambda: lines({"a": ([np.nan], [1])}, LABELS), "not all numbers are finite"),
    "an infinite level": (lambda: lines({"a": ([1], [1])}, LABELS, levels={"b": np.inf}), "b: not all"),
    "words": (lambda: lines({"a": (["x"], [1])}, LABELS), "a: give numbers"),
    "a stranger": (lambda: lines({"a": ([1], [1])}, LABELS, names=["b"]), "not among the names"),
    "a point without height": (lambda: scatter({"a": ([1, 2], [1])}, LABELS), "a: 2 and 1 numbers"),
    "a group without a bar": (lambda: bars(["g", "h"], {"a": [1]}, LABELS), "groups and a: 2 and 1"),
    "whiskers of nothing": (lambda: bars(["g"], {"a": [1]}, LABELS, errors={"b": [1]}), "have no bars"),
    "a bar below the bottom": (lambda: bars(["g"], {"a": [1]}, LABELS, bottom=2), "lower the bottom"),
    "a line below the bottom": (
        lambda: bars(["g"], {"a": [3]}, LABELS, published={"a": [1]}, bottom=2),
        "1 would not be seen",
    ),
    "a table of another shape": (
        lambda: heat([[1, 2]], LABELS, rows=["a"], columns=["b"], what="c"),
        "c: give 1 rows of 1 numbers",
    ),
    "an empty table": (lambda: heat([], LABELS, rows=[], columns=[], what="c"), "at least one row"),
    "a hidden name": (lambda: on_axes(scatter({"_a": ([1], [1])}, LABELS)), "underscore"),
    "another format": (lambda: draw(Path("plot.bmp"), example_heat()), r"drawn as \.svg or \.png"),
    "no panels": (lambda: draw(Path("plot.svg")), "nothing to draw"),
    "too many in a row": (lambda: draw(Path("plot.svg"), example_heat(), columns=4), "1 to 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused(case: str) -> None:
    make, message = REFUSED[case]

    with pytest.raises(FigureError, match=message):
        make()

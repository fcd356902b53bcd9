"""The page of a run: what it says, what it must not say, and how it is asked for."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from protocols.catalogue import CATALOGUE
from sims.cli import main
from sims.report import ReportedRun, page, read_runs
from sims.report.headline import figures, sentence
from sims.report.html_elements import element, joined
from sims.report.plot_types import Plot, Series, StackedBars
from sims.report.reported_run import algorithm_label
from sims.report.sections import plots
from sims.report.svg_plots import around
from tests.sims.audit_run import make_run, noisy
from tests.sims.report_runs import CLIENTS, CORRUPT, reported_run, write_run

EVIL = "<script>alert(1)</script>\"'&"


class _Tags(HTMLParser):
    """Elements with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def _several() -> list[ReportedRun]:
    return [
        reported_run("FedAvg", algorithm="fedavg", accuracy=0.43),
        reported_run("RFA", accuracy=0.90),
        reported_run("FedGeoMed+", algorithm="fedgeomed+", accuracy=0.94),
    ]


def _plot(runs: list[ReportedRun], key: str) -> Plot:
    (found,) = [each for each in plots(runs) if each.key == key]
    assert isinstance(found, Plot)
    return found


# --- what cannot get in ---


def test_what_others_wrote_is_text_and_never_an_element() -> None:
    made = reported_run(
        EVIL, algorithm=EVIL, name=EVIL, problems=(EVIL,), status=EVIL, cell={EVIL: EVIL}, seed=EVIL
    )
    text = page([made, reported_run("RFA")])
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert len(_Tags(text).named("script")) == 1


def test_markup_is_only_what_says_so() -> None:
    assert (
        element("p", "<b>", element("b", "a&b"), None, title='"')
        == '<p title="&quot;">&lt;b&gt;<b>a&amp;b</b></p>'
    )
    assert joined(["<", element("br")]) == "&lt;<br>"
    assert element("path", d="M0 0", hidden=True, class_=None) == '<path d="M0 0" hidden/>'


def test_the_page_loads_nothing_and_runs_its_own_script_alone() -> None:
    text = page([reported_run()])
    tags = _Tags(text)
    (policy,) = [each["content"] for each in tags.named("meta") if each.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
    assert not any({"style", "src", "srcset", "onclick", "action"} & set(each) for _, each in tags.found)
    assert all((each.get("href") or "").startswith("#") for each in tags.named("a"))
    assert not {"link", "img", "iframe"} & {name for name, _ in tags.found}


def test_the_same_run_gives_the_same_bytes() -> None:
    assert page(_several()) == page(_several())


@pytest.mark.parametrize("count", [1, 30])
def test_a_page_is_below_a_megabyte_however_long_the_runs_are(count: int) -> None:
    runs = [reported_run(f"run {number}", rounds=400, noise=True) for number in range(count)]
    text = page(runs)
    assert len(text.encode()) < 1_000_000
    assert "secagg audit --json has them" in text
    assert ("24 runs of 30" in text) == (count == 30)


def test_a_page_that_has_to_be_small_shows_less() -> None:
    runs = [reported_run(f"run {number}", rounds=50) for number in range(8)]
    full, small = page(runs), page(runs, most_bytes=300_000)
    assert len(small.encode()) < 300_000 < len(full.encode())


# --- accessibility that can be read off the markup ---


@pytest.mark.parametrize("count", [1, 3])
def test_everything_has_a_name(count: int) -> None:
    tags = _Tags(page(_several()[:count]))
    names = [name for name, _ in tags.found]
    ids = [each["id"] for _, each in tags.found if each.get("id")]
    assert len(ids) == len(set(ids))
    assert names.count("h1") == 1
    assert names.count("caption") == names.count("table")
    for each in tags.named("svg"):
        assert each.get("aria-hidden") == "true" or each["aria-labelledby"] in ids
    for each in tags.named("div"):
        assert each.get("role") != "region" or each["aria-label"]
    levels = [int(name[1]) for name in names if name in ("h1", "h2", "h3")]
    assert all(after - before <= 1 for before, after in pairwise(levels))


# --- the story ---


def test_several_runs_are_told_by_the_best_and_the_worst() -> None:
    text = sentence(_several()).replace("\N{NO-BREAK SPACE}", " ")
    assert re.fullmatch(
        r"FedGeoMed\+ kept 9\d\.\d % with 25 % of 40 clients malicious; FedAvg fell to 4\d\.\d %\.", text
    )


def test_runs_that_differ_by_their_seed_are_one() -> None:
    runs = [
        reported_run(f"{name} {seed}", accuracy=accuracy, cell={"method": name, "seed": seed})
        for name, accuracy in {"RFA": 0.9, "FedAvg": 0.4}.items()
        for seed in (1, 2)
    ]
    assert sentence(runs).endswith("each the mean of 2 seeds.")
    assert sentence(runs).startswith("RFA kept")


def test_runs_that_are_close_do_not_fall() -> None:
    text = sentence([reported_run("a", accuracy=0.90), reported_run("b", accuracy=0.91)])
    assert text.startswith("a and b ended between")


def test_one_run_says_what_the_server_saw() -> None:
    assert "the server saw 59 totals and no client's own vector" in sentence([reported_run()])
    assert "at an epsilon of 4.02" in sentence([reported_run(noise=True)])
    assert "added up in the open" in sentence([reported_run(channel="plain")])
    assert "nobody" not in sentence([reported_run(seed="ab" * 32)])


def test_a_run_that_has_not_begun_or_has_diverged_still_has_a_page() -> None:
    made = reported_run(rounds=3, status="interrupted")
    lost = replace(
        made, metrics=[{**line, "measured": {"common": {"mean_accuracy": None}}} for line in made.metrics]
    )
    empty = replace(made, metrics=[], sums=[], clients={})
    assert "diverged" in sentence([lost])
    for each in (lost, empty):
        text = page([each])
        assert "This run is interrupted" in text
        assert "the user pressed Ctrl-C" in text


def test_where_nothing_is_right_or_wrong_losses_are_shown() -> None:
    made = reported_run()
    lines = [
        {**line, "measured": {"common": {"pooled_loss": 2.0 / (line["round"] + 1)}}} for line in made.metrics
    ]
    loss = replace(made, metrics=lines, clients={})
    assert "came to a loss of 0.09524" in sentence([loss])
    assert _plot([loss], "accuracy").title == "Loss by round"
    assert figures([loss])[0].name == "Loss"
    text = page([loss, replace(loss, title="other")])
    assert "Loss: common model" in text
    assert "90th percentile" not in text


def test_figures_are_those_of_the_run() -> None:
    found = {each.name: each for each in figures([reported_run(noise=True)])}
    assert found["Sums released"].value == "59"
    assert found["Epsilon"].value == "4.02"
    assert found["Records"].value == "consistent, not authenticated"
    broken = {each.name: each for each in figures([reported_run(problems=("row 3 was altered",))])}
    assert broken["Records"].value == "altered"


def without_epsilon(made: ReportedRun) -> ReportedRun:
    found = replace(made.audit.guarantee, epsilon=None, rho=None, unnoised=("training",))
    return replace(made, audit=replace(made.audit, guarantee=found))


def test_noise_on_some_sums_alone_is_no_epsilon_of_the_run() -> None:
    only = without_epsilon(reported_run(noise=True))
    assert only.training_spent is not None
    assert "epsilon" not in sentence([only])
    for runs in ([only], [only, reported_run(noise=True)]):
        assert {each.name: each for each in figures(runs)}["Epsilon"].value == "none"


def test_the_headline_is_the_guarantee_over_all_sums() -> None:
    made = reported_run(noise=True)
    both = replace(made, audit=replace(made.audit, guarantee=replace(made.audit.guarantee, epsilon=7.25)))
    assert "at an epsilon of 7.25" in sentence([both])
    assert {each.name: each for each in figures([made, both])}["Epsilon"].value == "7.25"


# --- plots ---


def test_curves_are_what_was_measured() -> None:
    made = reported_run(rounds=20)
    plot = _plot([made], "accuracy")
    assert [each.name for each in plot.series][:2] == [
        "Common model, all clients",
        "Common model, benign clients",
    ]
    assert plot.places == tuple(map(float, range(0, 21, 2)))
    assert plot.series[0].values[-1] == pytest.approx(
        100 * made.metrics[20]["measured"]["common"]["mean_accuracy"]
    )


def test_personal_models_that_are_the_common_one_are_shown_once() -> None:
    made = reported_run()
    lines = [
        {**line, "measured": {"common": m["common"], "personal": m["common"]}}
        for line in made.metrics
        if (m := line["measured"])
    ]
    same = replace(made, metrics=lines)
    assert [each.name for each in _plot([same], "accuracy").series] == ["Common model, all clients"]
    assert same.headline == "common"


def test_a_run_looks_the_same_in_all_plots() -> None:
    runs = _several()
    runs[0] = replace(runs[0], metrics=[{**line, "facts": {}} for line in runs[0].metrics])
    looks = {each.name: each.look for each in _plot(runs, "tail").series}
    steps = {each.name: each.look for each in _plot(runs, "steps").series}
    assert set(steps) == {"RFA", "FedGeoMed+"}
    assert steps.items() <= looks.items()


def test_the_histogram_counts_every_benign_client_once() -> None:
    (common, personal) = _plot([reported_run()], "errors").series
    assert sum(each or 0 for each in common.values) == CLIENTS - CORRUPT
    assert sum(each or 0 for each in personal.values) == CLIENTS - CORRUPT


def test_sums_that_released_nothing_are_gaps_and_marked() -> None:
    plot = _plot([reported_run()], "survivors")
    counted, failed = plot.series[2], plot.series[3]
    (place,) = [at for at, value in enumerate(failed.values) if value is not None]
    assert counted.values[place] != counted.values[place]  # not a number: a gap
    assert plot.named(place) == "Sum 15, step"


def test_bars_of_a_client_add_up_to_what_it_sent() -> None:
    made = reported_run()
    (stack,) = [each for each in plots([made]) if isinstance(each, StackedBars)]
    assert made.audit.traffic is not None
    assert stack.rows == ("Sent", "Received", "Plain FedAvg, sent", "Plain FedAvg, received")
    assert stack.total(0) == pytest.approx(made.audit.traffic.up_per_client)
    assert stack.total(2) == made.audit.traffic.fedavg_up


def test_without_noise_the_page_says_why_there_is_no_epsilon() -> None:
    plot = _plot([reported_run()], "epsilon")
    assert not plot.drawn
    assert "No sum of the training carries noise" in page([reported_run()])
    assert _plot([reported_run(noise=True)], "epsilon").drawn


def test_a_private_histogram_is_shown_beside_the_truth() -> None:
    made = reported_run()
    seen = replace(made, audit=replace(made.audit, tail={"heights": [9.5, -1.0, 30.2, 2.0]}))
    released, true = _plot([seen], "private-tail").series
    assert released.values == (9.5, -1.0, 30.2, 2.0)
    assert sum(each or 0 for each in true.values) == CLIENTS


def test_long_plots_keep_both_ends_and_say_that_they_are_thinned() -> None:
    plot = Plot(
        "k", "t", "n.", "x", "y", tuple(map(float, range(100))), (Series("a", tuple(map(float, range(100)))),)
    )
    thin = plot.thinned(10)
    assert len(thin.places) == 10
    assert (thin.places[0], thin.places[-1], thin.series[0].values[-1]) == (0.0, 99.0, 99.0)
    assert "10 of 100" in thin.note


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (0.31, 0.93), (7.0, 7.0), (-3.2, 41.0), (1e-9, 3e-9)])
def test_scales_hold_all_values_and_have_round_ticks(low: float, high: float) -> None:
    scale = around(low, high, start=200.0, end=20.0)
    assert scale.low <= low <= high <= scale.high
    assert 2 <= len(scale.ticks()) <= 7
    assert scale(scale.low) == 200.0
    assert scale(scale.high) == 20.0


# --- real records ---


def test_the_page_says_whether_the_records_of_a_real_run_are_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", noisy(4))
    (real,) = read_runs(run)
    text = page([real])
    assert real.training_spent is not None
    assert "The records are consistent, not authenticated." in text
    assert "sums and sessions agree to the byte" in text
    head = run / "ledger.head"
    head.write_text(head.read_text().replace('"rows": ', '"rows": 1'))
    broken = page(read_runs(run))
    assert "The records of this run were altered" in broken
    assert 'class="banner bad"' in broken


# --- the command ---


def test_the_command_writes_the_page_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "results" / "robust-digits")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    text = (run / "report.html").read_text()
    assert "RFA kept" in text
    assert "insecure_seed" in text
    assert f"secagg simulate {run / 'scenario.toml'}" in text


def test_runs_of_a_sweep_are_compared(tmp_path: Path) -> None:
    for name, accuracy in {"FedAvg": 0.4, "RFA": 0.9}.items():
        write_run(tmp_path / "sweep" / name.lower(), title=name, accuracy=accuracy)
    output = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "sweep"), "--output", str(output)]) == 0
    assert "RFA kept" in output.read_text()
    assert "FedAvg fell to" in output.read_text()
    assert [each.title for each in read_runs(tmp_path / "sweep")] == ["FedAvg", "RFA"]


def test_the_page_can_be_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def show(address: str) -> bool:
        shown.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", show)
    run = write_run(tmp_path / "run")
    assert main(["report", str(run), "--open"]) == 0
    assert shown == [(run / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "nowhere is no directory"),
        (["empty"], "there is no run in"),
        (["damaged"], "is damaged"),
        (["run", "--output", "missing/page.html"], "No such file or directory"),
        (["run", "--output", "empty"], "is a directory"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(
    arguments: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    (write_run(tmp_path / "damaged") / "metrics.jsonl").write_text("nonsense\n")
    (tmp_path / "empty").mkdir()
    assert main(["report", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("secagg report: ")
    assert why in told
    assert not list((tmp_path / "empty").iterdir())


def test_every_algorithm_has_a_label_of_its_own() -> None:
    labels = {name: algorithm_label(name) for name in CATALOGUE}

    assert len(set(labels.values())) == len(CATALOGUE)
    assert all(labels.values())
    assert labels["scaffold"] == "SCAFFOLD"
    assert algorithm_label("of a later version") == "of a later version"

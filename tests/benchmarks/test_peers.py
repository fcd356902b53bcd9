"""``peers``: who runs when, on what, and what is divided by what. Flower itself is made up."""

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from benchmarks import flower, peers, sums
from benchmarks.__main__ import main
from benchmarks.flower import FlowerCosts, FlowerError
from benchmarks.peers import PeersSetting, Row, compare, runs_for
from benchmarks.repeats import measure_often, typical
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import SumReport
from sims.console_progress import OnProgress, quiet
from tests.benchmarks.reports import FLOWER, OURS

pytestmark = pytest.mark.slow  # measures real sums

needs_flower = pytest.mark.skipif(not flower.installed(), reason="flwr is not installed")

SETTING = PeersSetting(clients=12, neighbours=6, corrupt=1, dropout=Fraction(1, 10), dims=(10, 100))
SMALL = ("--clients", "12", "--neighbours", "6", "--corrupt", "1", "--dims", "10,100")


class FakeRuns:
    """Stands in for both sides, and remembers who ran in which order and on what."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.settings: list[SumSetting] = []
        self.works: list[dict[str, Any]] = []

    def ours(self, setting: SumSetting, _: OnProgress) -> SumReport:
        self.order.append("ours")
        self.settings.append(setting)
        return replace(OURS, dim=setting.dim, client_mask_cpu_s=float(len(self.order)))

    def flower(self, **work: Any) -> FlowerCosts:
        self.order.append("Flower")
        self.works.append(work)
        return FLOWER


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    runs = FakeRuns()
    monkeypatch.setattr(sums, "measure", runs.ours)
    monkeypatch.setattr(flower, "measure_flower", runs.flower)
    monkeypatch.setattr(flower, "installed", lambda: True)
    return runs


# --- several runs ---


def test_typical_run_has_the_median_of_everything() -> None:
    reports = [replace(OURS, client_mask_cpu_s=cost, server_peak_bytes=int(cost)) for cost in (9.0, 1.0, 4.0)]

    found = typical(reports)

    assert found == replace(OURS, client_mask_cpu_s=4.0, server_peak_bytes=4)


def test_typical_run_is_exact_if_all_were() -> None:
    wrong = replace(OURS, exact=False)

    assert not typical([OURS, wrong, OURS]).exact
    assert typical([OURS, OURS]).exact is True


def test_sum_is_run_as_often_as_asked(fake: FakeRuns) -> None:
    report = measure_often(SETTING.sum_of(10), quiet, runs=3)

    assert fake.order == ["ours"] * 3
    assert report.client_mask_cpu_s == 2.0


# --- side by side ---


def test_flower_runs_in_between(fake: FakeRuns) -> None:
    row = compare(SETTING.sum_of(10), quiet, runs=5)

    assert fake.order == ["ours", "ours", "ours", "Flower", "ours", "ours"]
    assert row.ours.client_mask_cpu_s == 3.0


def test_flower_gets_the_same_work(fake: FakeRuns) -> None:
    compare(SETTING.sum_of(10), quiet, runs=1)

    (setting,) = fake.settings
    assert (setting.bits, setting.trust, setting.neighbours) == (32, "curious_server", 6)
    assert fake.works == [
        {"clients": 12, "dim": 10, "neighbours": 6, "threshold": 3, "dropout": Fraction(1, 10)}
    ]


def test_another_threshold_can_be_asked_for(fake: FakeRuns) -> None:
    peers.measure_like(OURS, Fraction(0), threshold=4)

    assert [work["threshold"] for work in fake.works] == [4]


def test_every_length_is_a_row(fake: FakeRuns) -> None:
    report = peers.measure(SETTING, quiet)

    assert [row.ours.dim for row in report.rows] == [10, 100]
    assert fake.order.count("Flower") == 2


def test_progress_tells_the_length(fake: FakeRuns) -> None:
    told: list[str] = []

    peers.measure(SETTING, lambda text, _done, _of: told.append(text))

    assert told == ["10 elements: Flower", "100 elements: Flower"]


def test_short_sums_are_repeated_and_the_median_is_one_of_the_runs() -> None:
    runs = [runs_for(dim) for dim in (1000, 10_000, 100_000, 1_000_000, 10_000_000)]

    assert runs == sorted(runs, reverse=True)
    assert all(count % 2 for count in runs)
    assert (runs[0], runs[-1]) == (5, 1)


def test_ratios() -> None:
    row = Row(OURS, FLOWER)

    assert row.client_mask_ratio == 120 / (4 + 8)  # Flower's masking starts from floats
    assert row.server_unmask_ratio == 640 / 128
    assert row.bytes_ratio == 1000 / 500
    assert row.client_ratio == (100 + 120 + 28) / (1 + 2 + 4 + 8 + 16)
    assert row.server_ratio == (96 + 160 + 640) / (32 + 64 + 128)
    assert row.majority == 4  # of seven shares


# --- the command ---


def test_json(fake: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", *SMALL, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    rows = found.pop("rows")
    assert found == {"clients": 12, "neighbours": 6, "threshold": 3, "dropout": 0.1, "peer": "flwr 9.9"}
    assert [row["dim"] for row in rows] == [10, 100]
    first = rows[0]
    assert first["ours"]["client_encode_and_mask_cpu_s"] == 4.0 + first["ours"]["client_mask_cpu_s"]
    assert first["flower"]["right"] is True
    assert first["server_unmask_ratio"] == 5.0
    assert {name for name in first if name.endswith("_ratio")} == {
        "client_mask_ratio", "server_unmask_ratio", "bytes_ratio", "client_ratio", "server_ratio",
    }  # fmt: skip


def test_default_is_what_the_page_tells_of(fake: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--json"]) == 0

    dims = [row["dim"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert dims == [1000, 10_000, 100_000, 1_000_000]
    assert {(each.clients, each.neighbours, each.corrupt) for each in fake.settings} == {(50, 24, 5)}


def test_table(fake: FakeRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["peers", *SMALL]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert "12 clients of whom 1 vanish before they mask, 6 neighbours each, threshold 3" in out
    assert out.count("server: unmask") == out.count("client: encode and mask") == out.count("bytes up") == 2
    assert "640,000.000" in out
    assert "our totals equal the plain sums" in out
    assert "Flower's means are within their rounding" in out


def test_wrong_totals_are_said_aloud(
    fake: FakeRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "measure", lambda *_: replace(OURS, exact=False))
    monkeypatch.setattr(flower, "measure_flower", lambda **_: replace(FLOWER, error=9.0))

    assert main(["peers", *SMALL]) == 0

    out = capsys.readouterr().out
    assert "our totals DIFFER FROM the plain sums" in out
    assert "Flower's means are NOT WITHIN their rounding" in out


def test_missing_flower_is_one_sentence_before_anything_runs(
    fake: FakeRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "installed", lambda: False)

    assert main(["peers", *SMALL]) == 2

    out, err = capsys.readouterr()
    assert (out, fake.order) == ("", [])
    assert err == "python -m benchmarks peers: Flower is not installed: pip install 'secagg[peers]'\n"


def test_flower_that_fails_is_one_sentence(
    fake: FakeRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> FlowerCosts:
        raise FlowerError("Flower did not finish: why")

    monkeypatch.setattr(flower, "measure_flower", fail)

    assert main(["peers", *SMALL]) == 2

    assert capsys.readouterr() == ("", "python -m benchmarks peers: Flower did not finish: why\n")


@pytest.mark.parametrize("dims", ["", "10,", "10,x", "0", "1000000000"])
def test_bad_lengths_are_one_sentence(capsys: pytest.CaptureFixture[str], dims: str) -> None:
    assert main(["peers", "--dims", dims]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert "is not a whole number from 1 to 268435456" in err
    assert err.count("\n") == 1


@needs_flower
def test_with_flower(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "runs_for", lambda _: 1)

    assert main(["peers", *SMALL, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["neighbours"], len(found["rows"])) == (6, 2)
    for row in found["rows"]:
        assert row["ours"]["exact"]
        assert row["flower"]["right"]
        assert row["ours"]["dropped"] == row["flower"]["dropped"] == 1
        assert row["bytes_ratio"] > 1

"""``training``: what is trained, compared and divided. Nothing here depends on the clock."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import registry, training
from benchmarks.__main__ import main
from benchmarks.training import FEWER, TrainingCosts, TrainingReport, TrainingSetting, measure, random_clients
from fl.crowd import Crowd
from fl.device_and_threads import one_thread
from fl.training_settings import Training
from papers.model_setups import SETUPS, ModelSetup
from secagg.errors import LocalError
from sims.console_progress import quiet

pytestmark = pytest.mark.slow  # measures real sums

SMALL = ("--clients", "5", "--batch", "3", "--steps", "2")
SOFTMAX = TrainingCosts(
    setup="softmax-60",
    dim=610,
    clients=100,
    batch=10,
    steps=4,
    one_by_one_cpu_s=0.9,
    together_cpu_s=0.06,
    auto_cpu_s=0.066,
    difference=2e-8,
)
DROPOUT = replace(SOFTMAX, setup="mnist-dropout", together_cpu_s=None, auto_cpu_s=0.91, difference=0.0)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of each way."""
    monkeypatch.setattr(training, "RUNS", 1)
    monkeypatch.setattr(training, "ENOUGH", 0.0)


# --- what is compared ---


@pytest.mark.usefixtures("once")
def test_all_ways_train_the_same_models() -> None:
    (costs,) = measure(TrainingSetting(6, 4, 3, features=5), quiet).costs

    assert (costs.setup, costs.dim, costs.clients, costs.batch, costs.steps) == ("softmax-5", 60, 6, 4, 3)
    assert costs.difference < 1e-6
    assert costs.together_cpu_s is not None


@pytest.mark.usefixtures("once")
def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Crowd.train

    def skewed(crowd: Crowd, starts: Any, **options: Any) -> Any:
        models = train(crowd, starts, **options)
        models[2][7] += 0.5 if crowd.batching == "auto" else 0.0
        return models

    monkeypatch.setattr(Crowd, "train", skewed)

    (costs,) = measure(TrainingSetting(3, 4, 1, features=5), quiet).costs

    assert costs.difference == pytest.approx(0.5)


@pytest.mark.usefixtures("once")
def test_what_draws_lots_has_one_way_only() -> None:
    (costs,) = measure(TrainingSetting(2, 3, 1, model="mnist-dropout"), quiet).costs

    assert costs.together_cpu_s is None
    assert costs.speedup is None
    assert costs.difference == 0


@pytest.mark.usefixtures("once")
def test_every_way_is_run_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    threads: list[int] = []

    def train(crowd: Crowd, starts: Any) -> Any:
        ways.append(crowd.batching)
        threads.append(torch.get_num_threads())
        return dict.fromkeys(crowd, starts)

    monkeypatch.setattr(Crowd, "train", train)
    monkeypatch.setattr(training, "RUNS", 3)

    measure(TrainingSetting(2, 3, 1, features=4), quiet)

    assert ways == ["one-by-one", "together", "auto"] * 4
    assert set(threads) == {1}


@pytest.mark.parametrize(("seconds", "runs"), [(0.0, 25), (0.5, 4), (10.0, 3)])
def test_short_runs_are_repeated_more_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int
) -> None:
    costs = iter([seconds + 1, *[seconds] * 100])
    done: list[int] = []

    def fake(work: Callable[[], object]) -> float:
        work()
        return next(costs)

    monkeypatch.setattr(training, "cpu_seconds", fake)

    best = training._best({"some": lambda: done.append(1)})

    assert best == {"some": seconds}
    assert len(done) == runs


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()

    def broken() -> None:
        with one_thread():
            assert torch.get_num_threads() == 1
            raise LocalError("no")

    with pytest.raises(LocalError):
        broken()

    assert torch.get_num_threads() == before


# --- what is trained ---


@pytest.mark.parametrize(
    "name", ["sent140-logistic", "mnist-softmax", "cifar-lenet", "mnist-resnet", "shakespeare-lstm"]
)
def test_random_data_fit_the_model(name: str) -> None:
    """A crowd checks that itself: shapes, symbols and classes."""
    setup = SETUPS[name]

    data, loss = random_clients(setup, 3, 2)

    Crowd(setup.build(), data, Training(loss=loss), device="cpu")
    assert (loss == "logistic") == (name == "sent140-logistic")


def test_clients_have_different_amounts_of_their_own_data() -> None:
    setup = ModelSetup("softmax", {"features": 2, "classes": 10})
    data, _ = random_clients(setup, 50, 4)

    sizes = [len(each.train) for each in data.values()]
    assert min(sizes) >= 4
    assert max(sizes) <= 16
    assert len(set(sizes)) > 5
    assert len({tuple(each.train.x[0]) for each in data.values()}) == 50
    again, _ = random_clients(setup, 50, 4)
    assert all((again[client].train.x == data[client].train.x).all() for client in data)


def test_large_models_have_fewer_clients_unless_asked_for() -> None:
    everything = TrainingSetting()

    assert set(FEWER) <= set(SETUPS)
    assert list(everything.setups) == list(SETUPS)
    assert everything.amount("synthetic-softmax") == (100, 5)
    assert everything.amount("emnist-resnet18") == FEWER["emnist-resnet18"]
    assert replace(everything, clients=1).amount("mnist-resnet") == (1, FEWER["mnist-resnet"][1])
    alone = replace(everything, model="mnist-resnet")
    assert list(alone.setups) == ["mnist-resnet"]
    assert alone.amount("mnist-resnet") == (100, 5)


# --- the report ---


def test_ratios() -> None:
    assert SOFTMAX.speedup == pytest.approx(15)
    assert SOFTMAX.auto_over_best == pytest.approx(1.1)
    assert DROPOUT.auto_over_best == pytest.approx(0.91 / 0.9)
    assert replace(SOFTMAX, together_cpu_s=1.8).auto_over_best == pytest.approx(0.066 / 0.9)


@pytest.mark.usefixtures("once")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["training", *SMALL, "--features", "7", "--json"]) == 0

    (found,) = json.loads(capsys.readouterr().out)["setups"]
    assert (found["setup"], found["dim"], found["clients"], found["batch"]) == ("softmax-7", 80, 5, 3)
    for name in ("one_by_one_cpu_s", "together_cpu_s", "auto_cpu_s", "speedup", "auto_over_best"):
        assert found[name] > 0
    assert found["difference"] < 1e-6


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[TrainingSetting] = []

    def fake(setting: TrainingSetting, _: object) -> TrainingReport:
        asked.append(setting)
        large = replace(SOFTMAX, setup="emnist-softmax-no-bias", dim=12_599_806, one_by_one_cpu_s=12.3456)
        return TrainingReport(setting, [SOFTMAX, DROPOUT, large])

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(training, "measure", fake)

    assert main(["training"]) == 0

    out = capsys.readouterr().out
    assert asked == [TrainingSetting(100, 10, 5, None, None)]
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["softmax-60"] == ["610", "100", "900.0", "60.0", "66.0", "15.0", "1.10"]
    assert rows["mnist-dropout"] == ["610", "100", "900.0", "-", "910.0", "-", "1.01"]
    assert rows["emnist-softmax-no-bias"][:3] == ["12,599,806", "100", "12,346"]
    assert "auto takes at most 1.10 times as long as the better way (softmax-60)" in out
    assert "models differ by at most 2.0e-08" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "softmx"), "there is no set-up 'softmx'; there are sent140-logistic, "),
        (("--model", "mnist-1nn", "--features", "3"), "either --model or --features"),
        (("--features", "0"), "'0' is not a whole number from 1 to 1048576"),
        (("--clients", "0"), "'0' is not a whole number from 1 to 1024"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert main(["training", *options]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)

    assert main(["training"]) == 2

    assert "it needs torch: pip install 'secagg[fl]'" in capsys.readouterr().err

"""Flower's SecAgg+ as a benchmark runs it. Nothing here depends on how long things take."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import flower
from benchmarks.flower import BrokenRing, FlowerCosts, FlowerError, Grid, Work, measure_flower, median_of_sums
from secagg.errors import ParameterError

pytestmark = pytest.mark.slow  # measures real sums

needs_flower = pytest.mark.skipif(not flower.installed(), reason="flwr is not installed")

WORK = Work(clients=6, dim=5, neighbours=4, threshold=3, dropped=1, seed=0)


def measured(**changes: Any) -> FlowerCosts:
    """Seven clients, two of whom leave, unless something else is said."""
    usual: dict[str, Any] = {
        "clients": 7,
        "dim": 2000,
        "neighbours": 4,
        "threshold": 2,
        "dropout": Fraction(2, 7),
    }
    return measure_flower(**(usual | changes))


# --- without Flower ---


def test_importing_this_does_not_import_flower() -> None:
    program = "import sys; sys.modules['flwr'] = None; import benchmarks.flower"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_flower_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "installed", lambda: False)

    with pytest.raises(FlowerError, match=r"pip install 'secagg\[peers\]'"):
        measured()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dim": 0}, "a vector of 0 elements"),
        ({"neighbours": 7}, "7 neighbours among 7 clients"),
        ({"neighbours": 0, "threshold": 0}, "0 neighbours among 7 clients"),
        ({"neighbours": 3}, "as many on either side"),
        ({"threshold": 1}, "no threshold of 1 among 5"),
        ({"threshold": 5}, "no threshold of 5 among 5"),
        ({"dropout": Fraction(1)}, "drop-out fraction"),
    ],
)
def test_senseless_work_is_refused_before_anything_runs(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        measured(**changes)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import not_there", "did not finish: ModuleNotFoundError: No module named 'not_there'"),
        ("import os; os._exit(1)", "did not finish: it did not say why"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by signal 9"),
    ],
)
def test_failure_of_flower_is_one_sentence(
    program: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_flower(program, tmp_path, monkeypatch)

    with pytest.raises(FlowerError, match=why):
        measured()


def test_flower_is_told_not_to_call_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first line runs."""
    names = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")
    program = f"import os, sys; sys.exit(' '.join(os.environ[name] for name in {names}))"
    replace_flower(program, tmp_path, monkeypatch)

    with pytest.raises(FlowerError, match=r"did not finish: 0 1$"):
        measured()


def replace_flower(program: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed, importing flwr runs `program`, here and in processes started from here."""
    (path / "flwr.py").write_text(program)
    monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", str(path))


def test_vectors_are_drawn_anew_but_the_same() -> None:
    vectors = [WORK.vector(client) for client in range(WORK.clients)]

    assert all(np.array_equal(vector, WORK.vector(client)) for client, vector in enumerate(vectors))
    assert len({vector.tobytes() for vector in vectors}) == WORK.clients
    assert not np.array_equal(vectors[0], replace(WORK, seed=1).vector(0))
    # Well inside the range to which Flower clips.
    assert all(np.abs(vector).max() <= 1 for vector in vectors)


def test_mean_is_over_the_clients_named() -> None:
    plain = np.mean([WORK.vector(2), WORK.vector(5)], axis=0, dtype=np.float64)

    np.testing.assert_allclose(WORK.mean([2, 5]), plain, rtol=1e-15)


def test_median_is_over_those_who_were_there_throughout() -> None:
    values = {
        "early": {1: 10.0, 2: 20.0, 3: 30.0, 4: 1e9},
        "late": {1: 3.0, 2: 2.0, 3: 1.0},
        "other": {1: 1e9},
    }

    assert median_of_sums(values, ("early", "late")) == 22
    assert median_of_sums(values, ("late",)) == 2


SERVING, MASKING, TRAINING, WIRE = 1.0, 10.0, 100.0, 1000.0  # what they take, by the clock of a relay


class Relay:
    """What a grid needs of Flower, with clients that answer with the stage's name, and a wire that counts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, int]] = []
        self.carried: list[Any] = []
        stage = SimpleNamespace(SHARE_KEYS="share", COLLECT_MASKED_VECTORS="mask")
        self.flower = SimpleNamespace(
            names=SimpleNamespace(
                RECORD_KEY_CONFIGS="configs", Key=SimpleNamespace(STAGE="stage"), Stage=stage
            ),
            serde=SimpleNamespace(
                message_to_proto=self.to_proto, message_from_proto=self.carried.__getitem__
            ),
            proto=SimpleNamespace(Message=SimpleNamespace(FromString=lambda data: len(data) - 1)),
            mod=SimpleNamespace(secaggplus_mod=self.mod),
        )

    def to_proto(self, message: Any) -> Any:
        """The n-th message is n bytes long, and found again by its length."""
        self.now += WIRE
        self.carried.append(message)
        return SimpleNamespace(SerializeToString=lambda: bytes(len(self.carried)))

    def mod(self, message: Any, context: Any, train: Callable[[], None]) -> Any:
        stage, node = message.content.config_records["configs"]["stage"], message.metadata.dst_node_id
        assert context == f"context of {node}"
        self.asked.append((stage, node))
        self.now += MASKING
        train()
        return f"{stage} by {node}"

    def client(self, node: int) -> SimpleNamespace:
        def train() -> None:
            self.now += TRAINING
            client.training_cpu = TRAINING

        client = SimpleNamespace(context=f"context of {node}", train=train)
        return client

    def grid(self, clients: int, *, dropped: list[int], threshold: int) -> Grid:
        members: Any = {node: self.client(node) for node in range(clients)}
        return Grid(self.flower, members, dropped=dropped, threshold=threshold)


def message(stage: str, node: int, *neighbours: int) -> Any:
    request = {"stage": stage} | {str(each): b"keys" for each in neighbours}
    return SimpleNamespace(
        metadata=SimpleNamespace(dst_node_id=node),
        content=SimpleNamespace(config_records={"configs": request}),
    )


def test_clients_drop_out_after_sharing_and_before_masking() -> None:
    relay = Relay()
    grid = relay.grid(3, dropped=[1], threshold=2)

    shared = grid.send_and_receive([message("share", node, 0, 1, 2) for node in range(3)], timeout=None)
    masked = grid.send_and_receive([message("mask", node) for node in range(3)], timeout=None)
    grid.stop()

    assert shared == ["share by 0", "share by 1", "share by 2"]
    assert masked == ["mask by 0", "mask by 2"]
    assert relay.asked == [("share", 0), ("share", 1), ("share", 2), ("mask", 0), ("mask", 2)]
    # Requests and replies are carried in turns, so that every other length is that of a reply.
    assert grid.sent == {"share": {0: 2, 1: 4, 2: 6}, "mask": {0: 8, 2: 10}}
    assert {stage: set(cpu) for stage, cpu in grid.client_cpu.items()} == {"share": {0, 1, 2}, "mask": {0, 2}}
    assert len(grid.server_cpu) == 3


def test_only_flower_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay()
    monkeypatch.setattr(flower, "time", SimpleNamespace(process_time=lambda: relay.now))
    grid = relay.grid(2, dropped=[], threshold=2)

    grid.start()
    relay.now += SERVING
    grid.send_and_receive([message("mask", node) for node in range(2)])
    relay.now += 2 * SERVING
    grid.stop()

    assert grid.server_cpu == [SERVING, 2 * SERVING]
    assert grid.client_cpu == {"mask": {0: MASKING, 1: MASKING}}
    assert grid.wire_cpu == 4 * WIRE


def test_ring_that_breaks_is_noticed_before_masking() -> None:
    grid = Relay().grid(5, dropped=[0, 4], threshold=2)

    assert grid.send_and_receive([message("share", 2, 1, 2, 0)]) == ["share by 2"]
    with pytest.raises(BrokenRing):
        grid.send_and_receive([message("share", 4, 3, 4, 0)])


# --- with Flower ---


@needs_flower
def test_flower_finds_the_mean_of_those_who_stayed() -> None:
    costs = measured()

    assert costs.right
    assert costs.error > 0  # Flower rounds
    assert (costs.version, costs.dropped) == (metadata.version("flwr"), 2)
    # Numbers below 2**32, sent as 64 bits each, and some hundreds of bytes around them.
    assert 8 < costs.masked_bytes_per_element < 9
    assert costs.bytes_up > costs.masked_bytes_per_element * 2000


@needs_flower
def test_right_excuses_no_more_than_rounding() -> None:
    costs = measured(dropout=Fraction(0))

    assert costs.right
    assert not replace(costs, error=2 * costs.step).right


@needs_flower
def test_everybody_may_be_everybodys_neighbour() -> None:
    assert measured(clients=4, neighbours=3, dropout=Fraction(1, 4)).right


@needs_flower
def test_another_ring_is_drawn_where_one_would_break() -> None:
    """Nobody may have both of those who leave within reach: they must be five or six places apart."""
    costs = measured(clients=12, threshold=4, dropout=Fraction(2, 12))

    assert costs.right
    assert costs.seed > 0


@needs_flower
def test_ring_that_cannot_hold_is_given_up() -> None:
    with pytest.raises(FlowerError, match="none of 50 rings leaves everybody 4 live neighbours of 5"):
        measured(threshold=4, dropout=Fraction(3, 7))

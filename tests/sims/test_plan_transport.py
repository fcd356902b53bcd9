"""``secagg plan --transport`` says how much time the stages of sums wait for what carries their messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from secagg.local_session import Stage
from sims.cli import main, options
from sims.plan.transport_latency import TRANSPORTS

HYBRID = ("--key-agreement", "x25519+ml-kem-768")
LIARS = ("--trust", "malicious_server", "--corrupt", "1", "--clients", "20")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def transport(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(capsys, *arguments, "--json"))["transport"]
    return found


def test_the_command_knows_all_transports() -> None:
    assert tuple(TRANSPORTS) == options.TRANSPORTS
    assert all(each.faster in ("", *TRANSPORTS) for each in TRANSPORTS.values())


def test_without_a_transport_a_plan_says_nothing_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    plain = shown(capsys, "rfa")
    assert "transport" not in plain
    assert "transport" not in json.loads(shown(capsys, "rfa", "--json"))
    assert shown(capsys, "rfa", "--transport", "flower").startswith(plain)


@pytest.mark.parametrize(
    ("more", "stages", "setup"),
    [((), 6, 2), (HYBRID, 6, 3), (LIARS, 9, 2), ((*LIARS, *HYBRID), 9, 3)],
)
def test_stages_are_counted(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], stages: int, setup: int
) -> None:
    """Three sums a round, and 21 rounds in a session of 64 sums."""
    found = transport(capsys, "rfa", *more, "--transport", "flower", "--rounds", "22")
    assert found["stages_per_sum"] == stages // 3
    assert found["stages_per_round"] == stages
    assert found["setup_stages"] == setup
    assert found["seconds_per_round"] == pytest.approx(1.0 * (stages + setup / 21))
    assert found["seconds_with_session"] == pytest.approx(1.0 * (stages + setup))
    assert found["seconds"] == pytest.approx(1.0 * (22 * stages + 2 * setup + 2))


@pytest.mark.parametrize("trust", ["curious_server", "malicious_server"])
def test_the_stages_are_those_of_the_protocol(capsys: pytest.CaptureFixture[str], trust: str) -> None:
    lines = shown(capsys, "rfa", "--trust", trust, *HYBRID, "--transport", "tls")
    names = lines.split("stages         ")[1].split("\n")[0]
    left_out = {Stage.CONFIRM} if trust == "curious_server" else set()
    assert {each for each in Stage if each.value not in names} == left_out


def test_a_connection_takes_exchanges_of_an_engine_only(capsys: pytest.CaptureFixture[str]) -> None:
    once = {
        name: transport(capsys, "rfa", "--transport", name)["connection_exchanges"] for name in TRANSPORTS
    }
    assert once == {"tls": 0, "flower": 2, "flower-relay": 2, "nvflare": 2, "ray": 0}


def test_the_lines_say_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "rfa", "--transport", "flower", "--rounds", "40")
    assert "up to 6 stages of about 1 s each: 6.1 s a round and 4.1 min for 40 rounds" in lines
    assert "train for less than 6.1 s" in lines
    assert "With tls (connections of secagg serve and join), a round would take 0.061 s" in lines
    assert "evaluation     a sum of its own, where there is one: 2 s a round more" in lines


def test_a_relay_is_compared_with_our_own_node(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "rfa", "--transport", "flower-relay", "--rounds", "1000")
    assert "49 s a round and 14 h for 1,000 rounds" in lines
    assert "With flower (secagg join --flower)" in lines


@pytest.mark.parametrize("name", ["tls", "ray"])
def test_a_fast_transport_matters_little(capsys: pytest.CaptureFixture[str], name: str) -> None:
    lines = shown(capsys, "fedavg", "--set", "clip=1", "--transport", name)
    assert "2 stages of about" in lines
    assert "judgement      little" in lines


def test_large_messages_are_left_to_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("fedavg", "--set", "clip=1", "--dim", "10000000", "--transport", "flower")
    assert "train for less than" not in shown(capsys, *options)
    assert transport(capsys, *options)["message_bytes"] > 10_000_000


def test_short_sessions_are_said_to_dominate(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("fedavg", "--set", "clip=1", "--session-sums", "1", "--transport", "flower", *HYBRID)
    assert "raise --session-sums. With tls" in shown(capsys, *options)


def test_nothing_is_said_to_be_faster_than_our_own_connections(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, "median", "--set", "reach=1", "--set", "steps=40", "--transport", "tls")
    assert lines.endswith("an algorithm with fewer sums has fewer stages.\n")


def test_an_evaluation_is_left_out_if_sums_have_noise(capsys: pytest.CaptureFixture[str]) -> None:
    private = ("rfa", "--rho", "1", "--set", "step=0.1", "--transport", "flower")
    lines = shown(capsys, *private)
    assert "evaluation" not in lines
    assert "for 100 rounds" in lines


def test_it_says_how_a_figure_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for name, each in TRANSPORTS.items():
        assert f"measured       {each.origin}" in shown(capsys, "rfa", "--transport", name)


def test_without_sums_nothing_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the transport adds nothing" in shown(capsys, "local", "--transport", "flower")
    assert transport(capsys, "local", "--transport", "flower")["seconds"] == 0


def test_an_unknown_transport_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "rfa", "--transport", "pigeon"]) == 2
    assert "choose from" in capsys.readouterr().err

"""The command line of an audit: what it prints, how it ends, and what it says of mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from protocols.rfa import RFA
from secagg.net.certificates import make_certificate
from sims.cli import main
from sims.runtime import Setting
from tests.sims.audit_run import DIM, identity, make_run, noisy

FEW = Setting(sums=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two runs, one of them private."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "private", noisy(5, rounds=3), FEW, rounds=3)
    make_run(folder / "robust", RFA(dim=DIM, clients=6, weighted=False), FEW)
    return folder


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_run_in_words(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capsys, runs / "private")
    assert (status, err) == (0, "")
    titles = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert titles == [
        "private: FedAvg, 5 clients, 3 parameters",
        "Integrity",
        "What the server learned",
        "What this means for one client",
        "What it cost",
        "What is not private",
        "Drop-outs and refusals",
        "Bytes",
        "Canaries",
    ]
    assert "rounds 1-3: update, 1 a round; over 5 clients; so far rho 0.1082, epsilon 1.999" in out
    assert "all 4 set-ups and sums take what the protocol says, to the byte" in out
    assert f"signed by the key {identity().public.hex()}" in out


def test_every_sum_by_itself(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, runs / "private", "--all")
    assert out.count("update: over 5 of 5 clients; rho 0.03606, epsilon 1.094") == 3


def test_groups_are_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, runs / "robust")
    assert "vectors: up to 3 sums a round, 3 on average (3 in 2 rounds)" in out
    assert "by the server's count, a client in every released sum: 6 sums without noise" in out


def test_a_run_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, runs / "private", "--json", "--delta", "1e-3")
    found = json.loads(out)
    assert status == 0
    assert found["spending"]["delta"] == 1e-3
    assert found["subject"]["algorithm"] == "FedAvg"


def test_runs_in_one_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, "--compare", runs)
    assert status == 0
    heads = out.splitlines()[0].split()
    assert heads == ["private", "robust"]
    assert any(line.split() == ["epsilon", "1.999", "-"] for line in out.splitlines())
    assert "over cohorts m of 5, 6, a round takes" in out
    assert "which any two sizes would fit" in out
    assert ask(capsys, runs) == (0, out, "")
    _, out, _ = ask(capsys, "--compare", "--json", runs / "robust", runs / "private")
    assert list(json.loads(out)["runs"]) == ["robust", "private"]


def test_the_server_s_key_in_every_form(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = identity()
    (tmp_path / "key.hex").write_text(own.public.hex() + "\n")
    (tmp_path / "server.pem").write_bytes(make_certificate(own, now=0))
    for form in (own.public.hex(), own.public.hex().upper(), tmp_path / "key.hex", tmp_path / "server.pem"):
        status, out, _ = ask(capsys, runs / "private", "--server-key", form)
        assert status == 0
        assert ": the key you expect" in out
    status, out, _ = ask(capsys, runs / "private", "--server-key", "ab" * 32)
    assert status == 1
    assert "WRONG: the ledger was signed by the key" in out


@pytest.mark.parametrize("form", ["abc", "no-such-file", "damaged"])
def test_what_is_no_key(runs: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged").write_text("-----BEGIN CERTIFICATE-----\n")
    given = tmp_path / form if form == "damaged" else form
    status, out, err = ask(capsys, runs / "private", "--server-key", given)
    assert (status, out) == (2, "")
    assert err.startswith("secagg audit: --server-key")


def test_an_altered_ledger_ends_with_1(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(runs / "private", tmp_path / "run"))
    data = bytearray((run / "ledger").read_bytes())
    data[-40] ^= 1
    (run / "ledger").write_bytes(data)
    status, out, _ = ask(capsys, run)
    assert status == 1
    assert "WRONG: the ledger is damaged, or was altered" in out
    status, out, _ = ask(capsys, "--compare", run, runs / "private")
    assert status == 1
    assert "ALTERED" in out


def test_what_is_no_run(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, sentence in (
        ([tmp_path / "nowhere"], "does not exist: give the directory of a run, or ledgers"),
        ([tmp_path / "empty"], "there is no run in"),
        ([runs / "private", runs / "robust"], "give one run, or --compare to put several beside each other"),
        (["--compare", tmp_path / "empty"], "there is no run in"),
    ):
        status, out, err = ask(capsys, *arguments)
        assert (status, out) == (2, "")
        assert sentence in err


@pytest.mark.parametrize("delta", ["0", "1", "-1", "x"])
def test_a_delta_is_between_0_and_1(runs: Path, delta: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = ask(capsys, runs / "private", f"--delta={delta}")
    assert status == 2
    assert delta in err


def test_a_run_that_lacks_its_log(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(runs / "private", tmp_path / "run"))
    (run / "sums.jsonl").unlink()
    status, _, err = ask(capsys, run)
    assert status == 2
    assert "sums.jsonl is missing: it lists the sums of the run" in err

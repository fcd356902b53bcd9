"""``secagg preflight``."""

import json
import sys
from typing import Any

import pytest

from secagg import Trust
from secagg.hybrid_keys import KeyAgreement
from sims.cli import main
from sims.cli.options import KEY_AGREEMENTS, TRUST_LEVELS


def report(capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> dict[str, Any]:
    assert main(["preflight", "--json", *options]) == status
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_json_by_default_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)

    bytes_up = found.pop("bytes_up")
    resolution = found.pop("resolution")
    assert found == {
        "clients": 50,
        "corrupt": 5,
        "dropout": "1/10",
        "trust": "malicious_server",
        "key_agreement": "x25519",
        "sums": 3,
        "dim": 1000,
        "norm": "linf",
        "bound": 1.0,
        "graph": "complete",
        "neighbours": 49,
        "threshold": 28,
        "quorum": 28,
        "margin": 22,
        "liars": 8,
        "bits": 32,
        "bits_needed": 7,
        "ok": True,
        "problems": [],
        "cautions": [],
    }
    assert bytes_up == {"setup": 13_393, "each_sum": 7_183}
    assert resolution == pytest.approx(50 / 2**31, rel=1e-6)


@pytest.mark.parametrize("text", ["0.29", "29/100", "29"])
def test_colluders_are_counted_exactly(capsys: pytest.CaptureFixture[str], text: str) -> None:
    # In binary, 0.29 * 100 is less than 29.
    assert report(capsys, "--clients", "100", "--corrupt", text, "--dropout", "0")["corrupt"] == 29


def test_text_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--norm", "l2", "--bound", "2.5"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "clients", "keys", "graph", "threshold", "quorum", "margin", "liars", "bits", "resolution", "bytes",
    ]  # fmt: skip
    assert lines[1].endswith("x25519")
    assert lines[3].endswith("a mask opens with 28 shares")
    assert lines[5].endswith("22 may leave; 5 are expected to")
    assert lines[6].endswith("8 may lie, one after another, before too few clients are left")
    assert lines[7].endswith("32 given, 7 needed")
    assert lines[8].endswith("5.82e-08 in the vector's own unit")


def test_large_cohorts_meet_on_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "5000", "--trust", "curious_server", "--corrupt", "1/10"]
    assert main(["preflight", *options]) == 0
    assert "graph       ring: each client shares with 58 others" in capsys.readouterr().out
    found = report(capsys, *options[:2], status=2)
    assert found["graph"] is None
    assert main(["preflight", *options[:2]]) == 2
    assert "graph       none" in capsys.readouterr().out


def test_hybrid_keys_take_more_bytes_in_set_up_alone(capsys: pytest.CaptureFixture[str]) -> None:
    classical, hybrid = (report(capsys, "--key-agreement", each) for each in KEY_AGREEMENTS)
    assert hybrid["key_agreement"] == "x25519+ml-kem-768"
    before, after = classical["bytes_up"], hybrid["bytes_up"]
    assert after["each_sum"] == before["each_sum"]
    ciphertexts, kem_key, deposits = 49 * 1088, 1184, 49 * 3 * 64
    assert after["setup"] - before["setup"] == pytest.approx(ciphertexts + kem_key + deposits, abs=128)


def test_cautions_do_not_stop_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--clients", "12", "--corrupt", "3", "--dropout", "0.2")
    found = report(capsys, *options)
    assert (found["ok"], found["liars"]) == (True, 1)
    (caution,) = found["cautions"]
    assert main(["preflight", *options]) == 0
    assert f"caution     {caution}\n" in capsys.readouterr().out


def test_counts_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--norm", "count", "--bound", "1000", "--bits", "16"]) == 0

    assert "resolution  exact" in capsys.readouterr().out


def test_problems_come_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--corrupt", "40", "--dropout", "1/2", "--bits", "6")
    found = report(capsys, *options, status=2)

    assert not found["ok"]
    assert found["threshold"] is None
    assert found["resolution"] is None
    survivors, bits = found["problems"]
    assert survivors.endswith("need 46 survivors, but a drop-out of 1/2 leaves 25")
    assert bits == "kind 'sum': part 'update' has 6 bits, but 50 clients need 7"

    assert main(["preflight", *options]) == 2
    out = capsys.readouterr().out
    assert f"problem     {survivors}" in out
    assert f"problem     {bits}" in out
    assert "threshold   none\n" in out
    assert "margin      none\n" in out
    assert "liars       none\n" in out
    assert "resolution  none" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--norm", "count", "--bound", "1.5"), "a count has a whole bound, not 3/2"),
        (("--norm", "count", "--bound", "1e400"), "the limit of a count"),
        (("--dim", str(1 << 32)), "a spec must pack into at most 2147483648 bytes"),
        (("--bound", "-1"), "a bound must be above zero"),
        (("--bound", "1e400"), "the bound is too large"),
        (("--bound", "wide"), "'wide' is not a number such as 0.1 or 1/10"),
        (("--corrupt", "3/2"), "'3/2' is neither a whole number nor a part of all such as 0.1 or 1/10"),
        (("--dropout", "1"), "'1' is not at least 0 and below 1"),
        (("--bits", "65"), "'65' is not a whole number from 1 to 64"),
        (("--sums", "0"), "'0' is not a whole number from 1 to 64"),
        (("--trust", "blind"), "invalid choice: 'blind'"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert main(["preflight", *options]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("secagg preflight: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_one_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--sums", "1", "--dropout", "1/50"]) == 0

    out = capsys.readouterr().out
    assert "in each sum (1 sum)\n" in out
    assert "1 is expected to\n" in out


def test_help_tells_what_the_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["preflight", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "exit status is 0 if the session can work, and 2 if it cannot or an argument is wrong" in text


def test_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)

    assert main(["preflight"]) == 0


def test_choices_are_those_of_the_library() -> None:
    assert tuple(Trust) == TRUST_LEVELS
    assert tuple(KeyAgreement) == KEY_AGREEMENTS

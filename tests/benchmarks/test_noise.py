"""``noise``: what is counted and divided. Nothing here depends on how long things take."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import noise
from benchmarks.__main__ import main
from benchmarks.noise import NoiseReport, NoiseSetting, Peer, make_keystream, measure
from sims.console_progress import quiet

pytestmark = pytest.mark.slow  # measures real sums

SMALL = ("--sigma", "3/2", "--size", "1000")
REPORT = NoiseReport(
    setting=NoiseSetting(Fraction(2), 1000),
    samples_per_cpu_s=3e8,
    added_per_cpu_s=4e8,
    keystream_limit_per_cpu_s=3e9,
    build_cpu_s=0.002,
    stream_bytes=2016,
    total_variation=Fraction(1, 1 << 120),
    peer=Peer("opendp 9.9", 6e4),
)


class FakeOpenDP:
    """OpenDP as far as it is used, and what it was asked for."""

    def __init__(self) -> None:
        self.scale = 0.0
        self.given: Sequence[int] = ()
        self.features: list[str] = []
        self.m = SimpleNamespace(make_gaussian=self.make_gaussian)

    def enable_features(self, feature: str) -> None:
        self.features.append(feature)

    def atom_domain(self, *, T: type) -> str:
        return T.__name__

    def vector_domain(self, atoms: str) -> str:
        return f"vectors of {atoms}"

    def l2_distance(self, *, T: type) -> str:
        return f"l2 in {T.__name__}"

    def make_gaussian(self, domain: str, metric: str, *, scale: float) -> Any:
        assert (domain, metric) == ("vectors of int", "l2 in float")
        self.scale = scale
        return self.add_noise

    def add_noise(self, values: Sequence[int]) -> Sequence[int]:
        self.given = values
        return [value + 1 for value in values]


@pytest.fixture
def opendp(monkeypatch: pytest.MonkeyPatch) -> FakeOpenDP:
    """As if it were installed."""
    fake = FakeOpenDP()
    monkeypatch.setattr(noise, "find_spec", lambda _: True)
    monkeypatch.setattr(noise, "import_module", {"opendp.prelude": fake}.__getitem__)
    monkeypatch.setattr(metadata, "version", {"opendp": "9.9"}.__getitem__)
    return fake


@pytest.fixture
def no_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_opendp")
def test_stream_bytes_are_those_of_the_samples() -> None:
    """Two bytes each, and sixteen for those that need them; with rejection eighteen and more."""
    narrow = measure(NoiseSetting(Fraction(2), 10_000), quiet)
    wide = measure(NoiseSetting(Fraction(10**6), 10_000), quiet)

    assert 20_000 <= narrow.stream_bytes < 20_000 + 16 * 100
    assert (narrow.stream_bytes - 20_000) % 16 == 0
    assert 180_000 < wide.stream_bytes < 190_000
    assert narrow.peer is None
    assert narrow.total_variation < Fraction(1, 1 << 100)


@pytest.mark.usefixtures("no_opendp")
def test_the_limit_is_of_as_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(noise, "make_keystream", asked.append)

    report = measure(NoiseSetting(Fraction(2), 5000), quiet)

    assert asked == [report.stream_bytes] * noise.RUNS


@pytest.mark.parametrize("length", [0, 1, noise._BLOCK - 1, noise._BLOCK, noise._BLOCK + 1, 3 * noise._BLOCK])
def test_key_stream_of_any_length(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    made = []

    class Encryptor:
        def update_into(self, data: memoryview, buffer: bytearray) -> None:
            assert len(data) <= len(buffer)
            made.append(len(data))

    cipher = SimpleNamespace(encryptor=Encryptor)
    monkeypatch.setattr(noise, "Cipher", lambda *_: cipher)

    make_keystream(length)

    assert sum(made) == length


def test_opendp_adds_the_same_noise_to_zeros(opendp: FakeOpenDP) -> None:
    report = measure(NoiseSetting(Fraction(5, 2), 100), quiet)

    assert report.peer is not None
    assert report.peer.name == "opendp 9.9"
    assert report.peer.per_cpu_s > 0
    assert opendp.scale == 2.5
    assert opendp.features == ["contrib"]
    assert set(opendp.given) == {0}


def test_ratios() -> None:
    found = REPORT.as_json()

    assert found["sigma"] == "2"
    assert found["over_opendp"] == 5000
    assert found["stream_bytes_per_cpu_s"] == pytest.approx(3e9 * 2.016)
    assert found["total_variation_log2"] == -120
    assert "opendp_per_cpu_s" not in replace(REPORT, peer=None).as_json()


# --- the command ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_opendp")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", *SMALL, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["sigma"], found["size"]) == ("3/2", 1000)
    for name in ("samples_per_cpu_s", "added_per_cpu_s", "keystream_limit_per_cpu_s", "build_cpu_s"):
        assert found[name] > 0
    assert found["total_variation_log2"] < -100
    assert "opendp_per_cpu_s" not in found


def test_sigma_is_read_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[NoiseSetting] = []

    def fake(setting: NoiseSetting, _: object) -> NoiseReport:
        asked.append(setting)
        return REPORT

    monkeypatch.setattr(noise, "measure", fake)
    for options in ((), ("--sigma", "0.1"), ("--sigma", "1/3", "--size", "7")):
        assert main(["noise", *options, "--json"]) == 0

    assert asked == [
        NoiseSetting(Fraction(2), 20_000_000),
        NoiseSetting(Fraction(1, 10), 20_000_000),
        NoiseSetting(Fraction(1, 3), 7),
    ]


@pytest.mark.parametrize("peer", [REPORT.peer, None])
def test_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], peer: Peer | None
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(noise, "measure", lambda *_: replace(REPORT, peer=peer))

    assert main(["noise"]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert "1,000 samples of the discrete Gaussian with sigma 2, 2.02 bytes of key" in out
    assert "into a vector of 64-bit numbers    300.000" in out
    assert "2^-120.0" in out
    assert ("opendp 9.9" in out and "5,000.00" in out) == (peer is not None)
    assert ("OpenDP is not installed" in out) == (peer is None)


@pytest.mark.usefixtures("no_opendp")
def test_progress_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    assert main(["noise", *SMALL, "--json"]) == 0

    out, err = capsys.readouterr()
    assert "samples" in err
    json.loads(out)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sigma", "0"), "'0' is not above 0 and at most 2^58"),
        (("--sigma", "1e18"), "'1e18' is not above 0 and at most 2^58"),
        (("--sigma", "wide"), "'wide' is not a number such as 0.1 or 1/10"),
        (("--size", "0"), "'0' is not a whole number from 1 to 134217728"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert main(["noise", *options]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1

"""``sum --noise``: that it counts what it says. Nothing here depends on how long things take."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from benchmarks import encoding
from benchmarks.__main__ import main
from benchmarks.encoding import EncodingCosts, measure_encoding
from benchmarks.limits import Mask
from benchmarks.remote_server import RemoteServer
from benchmarks.repeats import typical
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import measure
from secagg import Trust
from secagg.errors import SpecError
from secagg.input_encoding import Encoding
from secagg.noise.gaussian import DiscreteGaussian
from secagg.residue_packing import Residues
from sims.console_progress import quiet

pytestmark = pytest.mark.slow  # measures real sums

SIZE = 10
DROPPED = 2
SMALL = ("--clients", str(SIZE), "--dim", "9", "--dropout", "1/5", "--noise")
COSTS = {"encode_noise_cpu_s", "plain_encode_cpu_s", "transform_cpu_s", "noise_draw_cpu_s", "add_cpu_s"}
RATIOS = {"encode_noise_over_parts", "transform_over_adds"}


def setting(**changes: Any) -> SumSetting:
    usual: dict[str, Any] = {
        "clients": SIZE,
        "dim": 9,
        "bits": 32,
        "corrupt": 1,
        "dropout": Fraction(1, 5),
        "trust": Trust.CURIOUS,
        "noise": True,
    }
    return SumSetting(**(usual | changes))


def costs(**changes: Any) -> EncodingCosts:
    usual: dict[str, Any] = {
        "dim": 1024,
        "encode_noise_cpu_s": 12.0,
        "plain_encode_cpu_s": 1.0,
        "transform_cpu_s": 5.0,
        "noise_draw_cpu_s": 4.0,
        "add_cpu_s": 0.25,
    }
    return EncodingCosts(**(usual | changes))


# --- what is summed ---


def test_noise_is_for_the_colluders_and_drop_outs_there_are() -> None:
    spec = setting().spec
    assert spec.is_private
    assert spec.promise is not None
    assert (spec.promise.clients, spec.promise.dropouts, spec.promise.colluders) == (SIZE, DROPPED, 1)
    assert not spec.promise.removable
    assert not setting(noise=False).spec.is_private


def test_grid_is_as_fine_as_the_bits_allow() -> None:
    sigmas = []
    for bits in (12, 16, 20):
        noise = setting(bits=bits).spec.parts[0].noise
        assert noise is not None
        sigmas.append(math.sqrt(noise.variance))
    assert sigmas[2] == pytest.approx(16 * sigmas[1], rel=0.1)
    assert sigmas[1] == pytest.approx(16 * sigmas[0], rel=0.1)


def test_setting_survives_the_way_to_the_server() -> None:
    for chosen in (setting(), setting(noise=False)):
        back = SumSetting.from_json(json.loads(json.dumps(chosen.as_json())))
        assert back == chosen
        assert back.spec.digest == chosen.spec.digest


def test_masks_are_as_long_as_what_is_sent() -> None:
    assert Mask.of(setting(dim=9).spec).bytes == 16 * 4 + 8
    assert Mask.of(setting(dim=9, noise=False).spec).bytes == 9 * 4 + 8


@pytest.mark.parametrize("trust", list(Trust))
def test_total_is_exactly_what_was_encoded_noise_included(trust: Trust) -> None:
    report = measure(setting(trust=trust), quiet)

    assert report.exact
    assert (report.dropped, report.dim, report.bytes_ideal) == (DROPPED, 9, 9 * 4)
    assert report.bytes_up > 16 * 4


@pytest.mark.parametrize("bits", [20, 64])
def test_another_total_is_not_exact(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Not even in the padding, which no number of the total comes from alone."""
    residues = RemoteServer.residues

    def other(server: RemoteServer, bits: int) -> Residues:
        changed = residues(server, bits).copy()
        assert len(changed) == 16
        changed[-1] ^= 1
        return changed

    monkeypatch.setattr(RemoteServer, "residues", other)

    assert not measure(setting(bits=bits), quiet).exact


# --- what is timed ---


def test_costs_and_ratios_are_there_with_noise_only() -> None:
    found = measure(setting(), quiet).as_json()
    assert found.keys() >= COSTS | RATIOS
    assert all(found[name] > 0 for name in COSTS | RATIOS)
    assert "encoding" not in found

    plain = measure(setting(noise=False), quiet).as_json()
    assert not plain.keys() & (COSTS | RATIOS | {"encoding"})


def test_ratios() -> None:
    found = costs()
    assert found.encode_noise_over_parts == 12.0 / (1.0 + 5.0 + 4.0)
    assert found.transform_over_adds == 5.0 / (10 * 0.25)
    assert costs(dim=1).transform_over_adds == 5.0 / 0.25
    assert {name: found.as_json()[name] for name in RATIOS} == {
        "encode_noise_over_parts": 1.2,
        "transform_over_adds": 2.0,
    }


def test_parts_are_those_of_one_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transform is of the padded vector; samples are as many as it has elements, of one client's law."""
    chosen = setting(dim=1000)
    transformed: list[int] = []
    drawn: list[tuple[Fraction, int]] = []
    monkeypatch.setattr(encoding, "walsh_hadamard", lambda vector: transformed.append(len(vector)))
    monkeypatch.setattr(DiscreteGaussian, "sample", lambda law, _, size: drawn.append((law.variance, size)))

    measure_encoding(chosen)

    noise, promise = chosen.spec.parts[0].noise, chosen.spec.promise
    assert noise is not None
    assert promise is not None
    assert set(transformed) == {1024}
    assert set(drawn) == {(noise.variance / (SIZE - DROPPED - 1), 1000)}


def test_the_least_of_several_turns_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: now)

    def taking(*seconds: float) -> Callable[[], None]:
        left = iter(seconds)

        def chore() -> None:
            nonlocal now
            now += next(left)

        return chore

    first = taking(*[3.0] * 13, 2.0, 3.0)
    second = taking(1.0, *[8.0] * 14)
    assert encoding._best_of({"a": first, "b": second}) == {"a": 2.0, "b": 1.0}


def test_median_of_several_sums() -> None:
    report = measure(setting(), quiet)
    runs = [replace(report, encoding=costs(add_cpu_s=seconds)) for seconds in (0.5, 0.25, 4.0)]
    assert typical(runs).encoding == costs(add_cpu_s=0.5)


def test_a_single_element() -> None:
    report = measure(setting(dim=1), quiet)
    assert report.exact
    assert report.encoding is not None
    assert report.encoding.dim == 1


# --- the command ---


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sum", *SMALL, "--runs", "2", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["exact"] is True
    assert found.keys() >= COSTS | RATIOS
    parts = found["plain_encode_cpu_s"] + found["transform_cpu_s"] + found["noise_draw_cpu_s"]
    assert found["encode_noise_over_parts"] == pytest.approx(found["encode_noise_cpu_s"] / parts)


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sum", *SMALL, "--runs", "1"]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    text = " ".join(out.split())
    assert "9 elements of 32 bits with noise" in text
    for row in ("rounding, without noise", "one draw of noise", "one addition of numpy"):
        assert row in text
    assert "one transform / log2(d) additions" in text
    assert "all of it / rounding, transform and draw" in text
    assert "the total equals the plain sum" in text


def test_without_noise_nothing_is_said_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sum", *SMALL[:-1], "--runs", "1"]) == 0

    assert "noise" not in capsys.readouterr().out


def test_too_few_bits_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError) as caught:
        _ = setting(bits=4).spec
    needed = caught.value.bits_needed

    assert main(["sum", *SMALL, "--bits", "4"]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert f"it needs at least {needed} bits" in err
    assert err.count("\n") == 1


def test_noise_in_front_of_the_name_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--noise", "sum"]) == 2

    assert "--noise belongs behind the name of a benchmark" in (err := capsys.readouterr().err)
    assert err.rstrip().endswith("(try python -m benchmarks sum --noise)")


def test_vectors_are_as_long_as_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is clipped, and rounding is as dear as it gets."""
    seen: list[Any] = []
    encode = Encoding.encode

    def spied(self: Any, values: Any, stream: Any) -> Any:
        seen.append(values)
        return encode(self, values, stream)

    monkeypatch.setattr(Encoding, "encode", spied)
    measure_encoding(setting(dim=100))
    for values in seen:
        (vector,) = values.values()
        assert np.square(vector).sum() == pytest.approx(1.0)

"""The empirical audit: honest noise passes, and every fault is found.

Verdicts are wrong about honest noise once in 100,000; seeds are fixed, so a test never is by chance alone.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError
from secagg.mask_keystream import KeyStream
from secagg.noise import grid_encoding
from secagg.noise.gaussian import discrete_gaussian
from secagg.noise.hadamard_rotation import Rotation
from secagg.sum_spec import L2, Bound, Count, LInf, Part, SumSpec
from sims.cli import main
from sims.cli.check_noise import FAULTS as FAULTS_OF_COMMAND
from sims.noise_audit import reference_encoding as reference
from sims.noise_audit.alarm_budget import alarms
from sims.noise_audit.conformance import Conformance, Effort, conformance
from sims.noise_audit.faults import Fault
from sims.noise_audit.law_and_epsilon_bounds import Bins, gaussian_epsilon, lower_bound
from sims.noise_audit.noise_check import THRESHOLD, NoiseTrial, run_trial, secure_scores, unmasked_scores
from sims.noise_audit.noise_statistics import law_of, quadratic_form_p
from sims.noise_audit.unmasked_sums import PART, UnmaskedSums, audited_spec, grid_points

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def promise(
    clients: int, dropouts: int = 0, *, colluders: int = 0, removable: bool = False
) -> NoiseAssumptions:
    return NoiseAssumptions(clients=clients, dropouts=dropouts, colluders=colluders, removable=removable)


# --- conformance ---------------------------------------------------------------------------------------


def conformance_of(spec: SumSpec, *, fault: Fault = Fault.NONE, dropped: int = 0) -> Conformance:
    assert spec.promise is not None
    return conformance(
        "sums",
        spec,
        clients=spec.promise.clients,
        dropped=dropped,
        effort=Effort(sums=4, input_sums=4),
        fault=fault,
    )


@pytest.mark.parametrize("dropped", [0, 2, 5])
@pytest.mark.parametrize("removable", [False, True])
def test_honest_noise_conforms(removable: bool, dropped: int) -> None:
    spec = audited_spec(size=1000, promise=promise(12, 5, removable=removable), multiplier=1.0)
    found = conformance_of(spec, dropped=dropped)
    assert alarms(found.tests) == ()
    assert (found.present, found.elements) == (12 - dropped, 1024)
    (noise,) = found.noise
    assert noise.samples == 4 << 10
    assert noise.ratio == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("removable", [False, True])
def test_every_fault_is_found(removable: bool, fault: Fault) -> None:
    spec = audited_spec(size=4096, promise=promise(8, 2, removable=removable), multiplier=1.0)
    assert alarms(conformance_of(spec, fault=fault).tests)


def test_the_command_offers_every_fault() -> None:
    assert set(FAULTS_OF_COMMAND) == set(Fault)


def test_counts_are_judged_too_and_parts_without_noise_are_not() -> None:
    noisy = Part(
        name="counts", size=1000, bits=24, bound=Count(1), noise=Noise(scale=64, variance=Fraction(3200))
    )
    plain = Part(name="plain", size=3, bits=8, bound=Count(1))
    found = conformance_of(SumSpec(parts=(noisy, plain), promise=promise(8)))
    (noise,) = found.noise
    assert noise.part == "counts"
    assert noise.expected == 3200
    assert alarms(found.tests) == ()


def test_more_drop_outs_than_promised_are_refused() -> None:
    spec = audited_spec(size=4, promise=promise(8, 2), multiplier=1.0)
    with pytest.raises(SpecError, match="3 drop-outs, but the noise is planned for 2"):
        UnmaskedSums(spec, clients=8, dropped=3)


def test_an_input_that_cannot_be_encoded_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without clipping, no rounding of a vector beyond the bound has an allowed norm."""
    monkeypatch.setattr(grid_encoding, "clip", lambda array, _: (lambda block: block.astype(float), 1.0))
    spec = audited_spec(size=16, promise=promise(4), multiplier=1.0)
    found = alarms(conformance_of(spec).tests)
    assert any("does not fit its bound after rounding" in each.name for each in found)


# --- the tests themselves ------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [4, 50, 20_000])
def test_the_law_is_known_at_every_width(sigma: float) -> None:
    """Beyond 13,000 grid points, the normal law takes the place of the discrete one."""
    variance = Fraction(sigma).limit_denominator(10) ** 2
    values = discrete_gaussian(variance).sample(KeyStream(bytes([7]) * 32), 200_000)
    assert law_of("x", values, float(variance)).p > 1e-4
    assert law_of("x", values, float(variance) * 1.05).p < 1e-6


def test_few_samples_are_sorted_into_few_bins() -> None:
    """With few samples in a bin, a lump of some would seem impossible. Ten times as many tell more."""
    even = np.rint(norm.ppf((np.arange(880) + 0.5) / 880) * 40).astype(np.int64)
    lumpy = np.append(even, np.full(60, 5))
    few, many = (Bins.of(1600.0, len(each)) for each in (lumpy, np.tile(lumpy, 100)))
    assert few.p(few.counts(lumpy)) > 0.01
    assert many.p(many.counts(np.tile(lumpy, 100))) < 1e-6


def test_a_right_variance_does_not_make_a_right_law() -> None:
    values = np.repeat(np.array([-50, 50]), 5000)
    assert values.var() == 2500
    assert law_of("x", values, 2500.0).p < 1e-9


@pytest.mark.parametrize(("pairs", "value"), [(1, 4.0), (10, 12.0), (1000, 130.0)])
def test_the_bound_of_products_is_above_their_tail(pairs: int, value: float) -> None:
    """By 200,000 samples of independent products, of products along a line, and of mirrored elements."""
    draw = np.random.default_rng(5)
    runs = 200_000 // pairs
    samples = draw.normal(size=(runs, 2 * pairs))
    line, mirrored = samples[:, : pairs + 1], samples[:, :pairs] * samples[:, : pairs - 1 : -1]
    for products in (mirrored, line[:, 1:] * line[:, :-1]):
        beyond = (np.abs(products.sum(axis=1)) >= value).mean()
        assert beyond <= float(quadratic_form_p(value, pairs)) + 4 * (0.25 / runs) ** 0.5


def test_the_bound_of_products_is_nearly_the_normal_tail_of_many() -> None:
    exact = 2 * norm.sf(6.0)
    assert exact < float(quadratic_form_p(6000.0, 1_000_000)) < 20 * exact
    assert float(quadratic_form_p(0.0, 10)) == 1.0


@pytest.mark.parametrize("bound", [L2(0.7), LInf(0.3), Count(3, total=7), Count(2)])
def test_the_reference_agrees_with_the_code_on_norms(bound: Bound) -> None:
    part = Part(name="x", size=50, bits=40, bound=bound, noise=Noise(scale=1000.0, variance=Fraction(1)))
    assert reference.most_norm2(part) == part.norm2


def test_the_reference_rotates_as_clients_do() -> None:
    part = Part(name="x", size=300, bits=40, bound=L2(2.0), noise=Noise(scale=64.0, variance=Fraction(1)))
    values, seed = np.random.default_rng(3).normal(size=300), bytes(range(32))
    points = reference.grid_vector(part, values, seed, 5)
    vector = np.pad(values * (2 / np.linalg.norm(values)), (0, 212))
    rotation = Rotation(seed, 5, 512)
    rotation.apply(vector)
    assert points == pytest.approx(vector * rotation.factor * 64)
    assert reference.real_vector(part, points, seed, 5) == pytest.approx(reference.clipped(part, values))


def test_grid_points_are_residues_around_zero() -> None:
    part = Part(name="x", size=4, bits=12, bound=Count(1))
    residues = np.array([0, 2047, 2048, 4095], np.uint16)
    assert grid_points(part, residues).tolist() == [0, 2047, -2048, -1]


# --- canaries ------------------------------------------------------------------------------------------


def test_epsilon_of_gaussian_noise_is_the_known_one() -> None:
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert gaussian_epsilon(2.0, 1e-5) == pytest.approx(9.997, abs=1e-3)
    assert gaussian_epsilon(0.25, 1e-5) == pytest.approx(0.926, abs=1e-3)
    assert gaussian_epsilon(0.0, 1e-5) == 0.0


@pytest.mark.parametrize("mu", [1 / 64, 1.0, 32.0, 64.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.001])
def test_epsilon_of_gaussian_noise_however_much_there_is(mu: float, delta: float) -> None:
    found = gaussian_epsilon(mu, delta)
    with mpmath.workdps(400):
        inner, outer = mu / 2 - mpmath.mpf(found) / mu, -mu / 2 - mpmath.mpf(found) / mu
        exact = mpmath.ncdf(inner) - mpmath.exp(found) * mpmath.ncdf(outer)
        assert float(exact / delta) == pytest.approx(1.0, rel=1e-6)


def test_the_bound_is_what_the_error_rates_say() -> None:
    present, absent = np.array([1.0] * 900 + [0.0] * 100), np.array([0.0] * 800 + [1.0] * 200)
    bound = lower_bound(present, absent, threshold=0.5, delta=1e-5, confidence=0.95)
    assert bound.runs == 2000
    assert 0.2 < bound.false_positives < 0.23
    assert 0.1 < bound.false_negatives < 0.125
    one = math.log((1 - bound.false_negatives - 1e-5) / bound.false_positives)
    other = math.log((1 - bound.false_positives - 1e-5) / bound.false_negatives)
    assert bound.epsilon_clopper_pearson == max(one, other)
    assert bound.epsilon_gaussian == gaussian_epsilon(bound.mu, 1e-5)


def test_scores_that_tell_nothing_prove_nothing() -> None:
    same = np.zeros(50)
    bound = lower_bound(same, same, threshold=0.5, delta=1e-5, confidence=0.99)
    assert bound.mu == bound.epsilon_gaussian == bound.epsilon_clopper_pearson == 0.0


def test_few_canaries_stay_below_and_a_fault_goes_beyond() -> None:
    spec = audited_spec(size=4, promise=promise(2), multiplier=1.0, least_scale=1000.0)
    bounds = {}
    for fault in (Fault.NONE, Fault.HALVED):
        scores = unmasked_scores(spec, clients=2, runs=1500, fault=fault)
        bounds[fault] = lower_bound(*scores, threshold=THRESHOLD, delta=1e-5, confidence=0.9999)
    true = gaussian_epsilon(1.0, 1e-5)
    assert 0.5 * true < bounds[Fault.NONE].epsilon_gaussian < true
    assert bounds[Fault.HALVED].epsilon_gaussian > true


def test_where_there_are_two_bounds_they_share_what_may_go_wrong() -> None:
    alone, both = (run_trial(NoiseTrial(clients=4, size=128, sums=1, canaries=50, secure=n)) for n in (0, 1))
    assert both.bound.false_positives > alone.bound.false_positives
    assert both.bound.epsilon_gaussian <= alone.bound.epsilon_gaussian


def test_canaries_go_through_the_machines_as_well() -> None:
    spec = audited_spec(size=4, promise=promise(2), multiplier=1 / 16, least_scale=1000.0)
    present, absent = secure_scores(spec, clients=2, runs=3)
    assert present == pytest.approx(1.0, abs=0.6)
    assert absent == pytest.approx(0.0, abs=0.6)


@pytest.mark.slow
def test_a_hundred_thousand_canaries_come_close() -> None:
    spec = audited_spec(size=4, promise=promise(2), multiplier=1.0, least_scale=1000.0)
    scores = unmasked_scores(spec, clients=2, runs=100_000)
    bound = lower_bound(*scores, threshold=THRESHOLD, delta=1e-5, confidence=0.9999)
    assert 0.92 <= bound.epsilon_gaussian / gaussian_epsilon(1.0, 1e-5) <= 1.0


# --- the command ---------------------------------------------------------------------------------------

SMALL = ("--clients", "10", "--dim", "3000", "--sums", "2", "--canaries", "300", "--secure", "2", "--json")


def run(*arguments: str) -> int:
    return main(["check-noise", *arguments])


def test_the_command_finds_honest_noise_honest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is found["noise_conforms"] is found["bound_conforms"] is True
    assert found["adjacency"] == "zero-out"
    assert found["epsilon"] == pytest.approx(4.3772, abs=1e-4)
    assert found["samples"] == 1 << 13
    assert found["tests"][0]["kind"] == "vector"
    assert len({each["kind"] for each in found["tests"]}) == 8
    assert all(each["conforms"] for each in found["tests"])
    asked = ("clients", "dim", "sums", "dropouts", "dropped", "removable", "multiplier", "seed", "fault")
    assert [found[name] for name in asked] == [10, 3000, 2, 0, 0, False, 1.0, 0, "none"]
    assert found["epsilon_gaussian_over_epsilon"] == found["epsilon_gaussian"] / found["epsilon"]


def test_without_any_epsilon_nothing_is_a_part_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--delta", "0.5", "--multiplier", "64") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == 0
    assert found["epsilon_gaussian_over_epsilon"] is None


@pytest.mark.parametrize("multiplier", ["1/64", "64"])
def test_the_command_knows_little_noise_and_much(multiplier: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL[:-1], "--multiplier", multiplier) == 0
    assert "as promised" in capsys.readouterr().out


def test_few_canaries_tell_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--clients", "4", "--dim", "100", "--sums", "1", "--canaries", "1", "--secure", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "noise of 1 total over zeros, 128 elements in all: as promised"
    assert sum("this proves nothing" in line for line in lines) == 3


@pytest.mark.parametrize("fault", ["halved", "rotated"])
def test_the_command_finds_faults(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL[:-1], "--fault", fault) == 1
    assert "NOT as promised" in capsys.readouterr().out


def test_too_little_noise_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL[:-1], "--canaries", "1000", "--fault", "halved") == 1
    assert "MORE than is claimed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--dropped", "1"), "1 drop-out, but the noise is planned for 0"),
        (("--dropouts", "20"), "no client is left to add noise"),
        (("--multiplier", "0"), "from 1/64 to 64"),
        (("--delta", "1"), "above 0 and below 1"),
        (("--sums", "12"), "cannot be judged by 96 elements: .* must be at least 100"),
        (("--dim", "1", "--sums", "1"), "cannot be judged by 1 element: "),
    ],
)
def test_bad_arguments_exit_with_2(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = run("--clients", "8", "--dim", "8", *arguments)
    except SystemExit as error:
        status = error.code  # type: ignore[assignment]
    assert status == 2
    assert re.search(text, capsys.readouterr().err)


def test_a_trial_without_machines_has_no_bound_from_them() -> None:
    outcome = run_trial(NoiseTrial(clients=4, size=100, sums=1, canaries=10))
    assert outcome.secure is None
    assert outcome.session == ()
    assert outcome.bounded
    assert outcome.kinds[0].noise[0].part == PART

"""The discrete Gaussian against decimals of 120 digits, and what a law promises its users."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from secagg.errors import ParameterError
from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import LARGEST_VARIANCE, discrete_gaussian
from secagg.noise.inversion_sampler import PRECISION, InversionTable, exp_minus, tails
from secagg.noise.rejection_sampler import Hybrid

SEED = bytes(range(32))
DIGITS = 120
UNITS = 1 << 128
# Tables of both word sizes, one that is nearly constant and one that is quite so, and hybrids.
NARROW = [Fraction(1, 100), Fraction(1, 4), Fraction(7, 3), Fraction(100), Fraction(10**4)]
WIDE = [Fraction(1 << 20) + 1, Fraction(10**12), Fraction(1 << 80)]


def stream(number: int = 0) -> KeyStream:
    return KeyStream(SEED[:31] + bytes([number]))


def decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)


def weights(variance: Fraction) -> list[Decimal]:
    """Of 0, 1, ... until they are below 10^-60."""
    found = [Decimal(1)]
    while found[-1] > Decimal(10) ** -60:
        found.append((-decimal(len(found) ** 2 / (2 * variance))).exp())
    return found


def exact_tails(variance: Fraction, *, both_sides: bool) -> list[Decimal]:
    """P[X > k] for k = 0, 1, ..."""
    with localcontext() as context:
        context.prec = DIGITS
        found = weights(variance)
        total = found[0] + sum(found[1:]) * (2 if both_sides else 1)
        return [sum(found[k + 1 :], Decimal(0)) / total for k in range(len(found))]


def thresholds(table: InversionTable) -> list[int]:
    return [int(high) << 64 | int(low) for high, low in zip(table.high, table.low, strict=True)]


def table_of(variance: Fraction) -> InversionTable:
    sampler = discrete_gaussian(variance)._sampler
    assert isinstance(sampler, InversionTable)
    return sampler


# --- probabilities -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x", [Fraction(0), Fraction(1, 10**30), Fraction(1, 3), Fraction(1), Fraction(100, 7), Fraction(319)]
)
def test_exp(x: Fraction) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        assert abs(exp_minus(x) - (-decimal(x)).exp() * (1 << PRECISION)) < 2


@pytest.mark.parametrize("x", [Fraction(320), Fraction(10**40)])
def test_exp_of_what_is_below_all_precision(x: Fraction) -> None:
    assert exp_minus(x) == 0


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize("variance", [*NARROW[:-1], Fraction(1000)])
def test_tails_are_rounded_from_the_exact_ones(variance: Fraction, both_sides: bool) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        exact = [each * UNITS for each in exact_tails(variance, both_sides=both_sides)]
        expected = [int(each.to_integral_value()) for each in exact]
    found = tails(variance, both_sides=both_sides)

    assert found == expected[: len(found)]
    assert not any(expected[len(found) :])


@pytest.mark.parametrize("variance", NARROW)
def test_thresholds_rise_and_are_symmetric(variance: Fraction) -> None:
    found = thresholds(table_of(variance))

    assert found == sorted(found)
    assert [UNITS - each for each in reversed(found)] == found
    assert 0 < found[0] < found[-1] < UNITS


def test_nothing_but_zero_is_left_of_a_tiny_variance() -> None:
    for variance in (Fraction(1, 200), Fraction(1, 10**6), Fraction(1, 1 << 128)):
        law = discrete_gaussian(variance)
        assert not law.sample(stream(), 1000).any()
        assert law.total_variation < Fraction(1, 1 << 100)


# --- total variation -----------------------------------------------------------------------------------


def exact_total_variation(table: InversionTable, variance: Fraction) -> Decimal:
    """Half the sum of all differences of probabilities, value by value; that of the tails too."""
    beyond = exact_tails(variance, both_sides=True)
    most = len(beyond)
    edges = [0, *thresholds(table), UNITS]
    rounded = {table.first + k: edges[k + 1] - edges[k] for k in range(len(edges) - 1)}
    with localcontext() as context:
        context.prec = DIGITS
        exact = {0: 1 - 2 * beyond[0]}
        for k in range(1, most):
            exact[k] = exact[-k] = beyond[k - 1] - beyond[k]
        off = [abs(exact[k] - Decimal(rounded.get(k, 0)) / UNITS) for k in exact]
        return sum(off, Decimal(0)) / 2


@pytest.mark.parametrize("variance", [Fraction(1, 10**6), *NARROW[:-1], Fraction(1000)])
def test_total_variation_of_tables(variance: Fraction) -> None:
    table = table_of(variance)
    exact, bound = exact_total_variation(table, variance), discrete_gaussian(variance).total_variation

    assert exact <= decimal(bound)
    assert bound < Fraction(1, 1 << 112)
    assert exact > 0, "as it would be if nothing had been compared"


def test_total_variation_of_hybrids() -> None:
    """Every proposal's error, as sums over all of them: of J times that of a wrong acceptance.

    J of the table and A are compared with the exact ones; V and S are uniform in any case.
    """
    variance = Fraction(1 << 14) + 1
    hybrid, width = Hybrid(variance), 2
    beyond = exact_tails(variance / width**2, both_sides=False)
    edges = [0, *thresholds(hybrid.steps), UNITS]
    off, kept = Decimal(0), Decimal(0)
    with localcontext() as context:
        context.prec = 60
        chances = [1 - beyond[0], *(beyond[k - 1] - beyond[k] for k in range(1, len(edges) - 1))]
        for step, chance in enumerate(chances):
            drawn = Decimal(edges[step + 1] - edges[step]) / UNITS
            for moved in (0, 1, 1, 2):  # V + S
                exponent = moved * (2 * width * step + moved) / (2 * variance)
                exact = (-decimal(exponent)).exp()
                rounded = Decimal(exp_minus(exponent) >> (PRECISION - 128)) / UNITS
                off += abs(chance * exact - drawn * rounded) / (2 * width)
                kept += chance * exact / (2 * width)
        assert 0 < off / kept < decimal(hybrid.total_variation)
        assert kept > Decimal("0.98")


@pytest.mark.parametrize("variance", [*NARROW, *WIDE, Fraction(1 << 20), Fraction(LARGEST_VARIANCE)])
def test_total_variation_is_below_what_is_promised(variance: Fraction) -> None:
    assert 0 < discrete_gaussian(variance).total_variation < Fraction(1, 1 << 110)


# --- samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(4), Fraction(10**4), Fraction(10**12)])
def test_moments(variance: Fraction) -> None:
    """Mean and variance of 10^6 samples within 6 standard errors."""
    size = 10**6
    samples = discrete_gaussian(variance).sample(stream(), size).astype(float)
    span = range(-100, 101)
    exact = float(variance)
    if variance < 1:
        shares = np.exp([-(k**2) / (2 * exact) for k in span])
        exact = float((shares * np.square(span)).sum() / shares.sum())

    assert abs(samples.mean()) < 6 * (exact / size) ** 0.5
    # The fourth moment of a discrete Gaussian below variance 1 is at most 5 times the squared variance here.
    assert abs(np.square(samples).mean() / exact - 1) < 6 * (4 / size) ** 0.5


@pytest.mark.parametrize("size", [0, 1, 5, 8191, 8192, 8193, 32767, 32769, 100_000])
@pytest.mark.parametrize("variance", [Fraction(4), Fraction(10**4), Fraction(10**12)])
@pytest.mark.parametrize("kind", ["<u1", "<u2", "<u4", "<u8"])
def test_residues_get_the_same_samples(variance: Fraction, kind: str, size: int) -> None:
    law, start = discrete_gaussian(variance), np.arange(size, dtype=np.uint64).astype(kind)
    residues = start.copy()
    law.add_to(residues, stream())

    samples = law.sample(stream(), size)
    assert samples.dtype == np.int64
    assert residues.dtype == np.dtype(kind)
    assert (residues == start + samples.astype(kind)).all()
    law.subtract_from(residues, stream())
    assert (residues == start).all()


def test_a_stretch_of_residues() -> None:
    """What is beside it stays as it is."""
    residues = np.zeros(30, np.uint32)
    discrete_gaussian(Fraction(10**4)).add_to(residues[10:20], stream())

    assert residues[10:20].all()
    assert not residues[:10].any()
    assert not residues[20:].any()


@pytest.mark.parametrize("variance", [Fraction(4), Fraction(10**12)])
def test_seeds_and_streams(variance: Fraction) -> None:
    law = discrete_gaussian(variance)
    one = stream()
    first, second = law.sample(one, 1000), law.sample(one, 1000)

    assert (first == law.sample(stream(), 1000)).all()
    assert (first != second).any()
    assert (first != law.sample(stream(1), 1000)).any()


@pytest.mark.parametrize(
    "variance",
    [
        Fraction((1 << 128) - 1, (1 << 126) + 1),
        Fraction((1 << 128) - 159, 1 << 100),
        Fraction(1 << 100, (1 << 79) - 1),
    ],
)
def test_long_fractions(variance: Fraction) -> None:
    samples = discrete_gaussian(variance).sample(stream(), 100_000).astype(float)

    assert np.square(samples).mean() / float(variance) == pytest.approx(1, abs=6 * (2 / 100_000) ** 0.5)


def test_the_largest_law_fits_into_its_samples() -> None:
    """A sample cannot overflow, however unlikely it is."""
    sampler = discrete_gaussian(LARGEST_VARIANCE)._sampler
    assert isinstance(sampler, Hybrid)
    most_steps = len(thresholds(sampler.steps))

    assert (2 * most_steps + 1) << sampler.width_bits < 1 << 63
    samples = discrete_gaussian(LARGEST_VARIANCE).sample(stream(), 10_000)
    assert np.square(samples / 2.0**58).mean() == pytest.approx(1, abs=6 * (2 / 10_000) ** 0.5)


# --- laws ----------------------------------------------------------------------------------------------


def test_laws_are_kept() -> None:
    assert discrete_gaussian(Fraction(5, 3)) is discrete_gaussian(Fraction(10, 6))
    assert repr(discrete_gaussian(Fraction(5, 3))) == "DiscreteGaussian(5/3)"


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1), Fraction(LARGEST_VARIANCE) + 1])
def test_impossible_variances(variance: Fraction) -> None:
    with pytest.raises(ParameterError, match="above zero and at most"):
        discrete_gaussian(variance)

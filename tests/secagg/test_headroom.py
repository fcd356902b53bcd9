"""How many bits noise needs: from first principles, and what is refused."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError
from secagg.input_encoding import Encoding
from secagg.sensitivity_and_headroom import bits_for_noise
from secagg.sum_spec import L2, Bound, Count, LInf, Part, SumSpec
from tests.secagg.encodings import stream

PROMISE = NoiseAssumptions(clients=100, dropouts=30, colluders=10)


def spec(
    bound: Bound,
    *,
    scale: float,
    variance: Fraction,
    bits: int = 64,
    size: int = 64,
    promise: NoiseAssumptions = PROMISE,
) -> SumSpec:
    part = Part(name="x", size=size, bits=bits, bound=bound, noise=Noise(scale=scale, variance=variance))
    return SumSpec(parts=(part,), promise=promise)


def needed(asked: SumSpec, cohort: int) -> int:
    """From 1 bit on, the first that is accepted; every refusal names it."""
    (part,) = asked.parts
    assert part.noise is not None
    named = set()
    for bits in range(1, 65):
        try:
            spec(part.bound, scale=part.noise.scale, variance=part.noise.variance, bits=bits, size=part.size,
                 promise=asked.promise or PROMISE).check_fits(cohort)  # fmt: skip
        except SpecError as error:
            named.add(error.bits_needed)
        else:
            assert named == {bits} or (not named and bits == 1)
            return bits
    (only,) = named
    assert only is not None
    assert only > 64
    return only


def released(promise: NoiseAssumptions, roster: int) -> Fraction:
    """The variance in the total when nobody drops out, as a multiple of the target."""
    honest = roster - promise.dropouts - promise.colluders
    return Fraction(roster - promise.dropouts if promise.removable and promise.dropouts else roster, honest)


def bits_by_oracle(asked: SumSpec, roster: int) -> int:
    """Two standard deviations beyond what honest clients reach, with 60 digits."""
    (part,) = asked.parts
    assert part.noise is not None
    assert asked.promise is not None
    with localcontext(prec=60):
        scale, limit = Decimal(part.noise.scale), Decimal(getattr(part.bound, "limit", 0))
        share = released(asked.promise, roster) * part.noise.variance
        variance = Decimal(share.numerator) / Decimal(share.denominator)
        reach = roster * limit * scale
        match part.bound:
            case L2():
                most = 2 * (reach**2 / part.width + variance + Decimal(roster) / 4).sqrt()
            case LInf():
                most = reach + roster + 2 * variance.sqrt()
            case _:
                most = reach + 4 * variance.sqrt()
        whole = int(most.to_integral_value(ROUND_FLOOR))
    signs = 0 if part.counts else 1
    return next(bits for bits in range(1, 200) if whole < 1 << bits) + signs if whole else signs or 1


BOUNDS = st.one_of(
    st.builds(L2, st.floats(0.1, 100)),
    st.builds(LInf, st.floats(0.1, 100)),
    st.builds(Count, st.integers(1, 100)),
)


@given(
    BOUNDS,
    st.integers(1, 1 << 16),
    st.fractions(min_value=1, max_value=10**12),
    st.sampled_from([1, 2, 3, 64, 1000]),
    st.booleans(),
    st.integers(41, 100),
)
@settings(max_examples=150)
def test_bits_needed_are_those_of_two_standard_deviations(
    bound: Bound, scale: int, variance: Fraction, size: int, removable: bool, clients: int
) -> None:
    promise = NoiseAssumptions(clients=clients, dropouts=30, colluders=10, removable=removable)
    asked = spec(bound, scale=scale, variance=variance, size=size, promise=promise)
    assert needed(asked, clients) == bits_by_oracle(asked, clients)


def test_bits_are_those_of_the_clients_that_noise_is_planned_for() -> None:
    asked = spec(LInf(1.0), scale=1000.0, variance=Fraction(10**6))
    assert needed(asked, 10**6) == needed(asked, 1) == needed(asked, 100) == bits_by_oracle(asked, 100)


@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0), Count(1)])
@pytest.mark.parametrize("removable", [False, True])
def test_the_least_roster_is_the_first_that_leaves_room(bound: Bound, removable: bool, spare: int) -> None:
    """Room for five standard deviations, or for as many whole ones as the planned roster leaves."""
    promise = NoiseAssumptions(clients=100, dropouts=30, colluders=10, removable=removable)
    loose = spec(bound, scale=4.0, variance=Fraction(10**8), promise=promise)
    bits = needed(loose, 100) + spare
    asked = spec(bound, scale=4.0, variance=Fraction(10**8), bits=bits, promise=promise)

    def fits(clients: int, stddevs: float) -> bool:
        (part,) = asked.parts
        assert part.noise is not None
        return bits_for_noise(part, part.noise, promise, clients, stddevs=stddevs) <= bits

    room = max(stddevs for stddevs in (2.0, 3.0, 4.0, 5.0) if fits(100, stddevs))
    rosters = range(promise.least_roster, promise.clients + 1)
    assert asked.least_roster == next(clients for clients in rosters if fits(clients, room))
    assert all(fits(clients, room) for clients in range(asked.least_roster, 101))
    assert asked.least_roster > promise.least_roster


def test_a_spec_without_noise_needs_no_roster() -> None:
    assert SumSpec(parts=(Part(name="x", size=1, bits=8, bound=Count(1)),)).least_roster == 0


def test_removable_noise_needs_no_more_bits_than_what_is_left_of_it() -> None:
    kept, removed = (
        spec(
            LInf(1.0),
            scale=1.0,
            variance=Fraction(10**12),
            promise=NoiseAssumptions(clients=100, dropouts=90, colluders=0, removable=removable),
        )
        for removable in (False, True)
    )
    assert (needed(kept, 100), needed(removed, 100)) == (24, 22)


@pytest.mark.parametrize(
    ("bound", "scale", "variance", "bits"),
    [
        # 100 clients of at most 3 at 8 points each, and 4 * 10 * sqrt(100 / 60) points of noise, are 2451.
        (Count(3), 8.0, Fraction(100), 12),
        # 100 * 128 + 100 + 2 * 16 * sqrt(100 / 60) are 12941 on either side.
        (LInf(1.0), 128.0, Fraction(256), 15),
        # 2 * sqrt((100 * 128)^2 / 64 + 256 * 100 / 60 + 25) are 3200 on either side.
        (L2(1.0), 128.0, Fraction(256), 13),
    ],
)
def test_bits_by_hand(bound: Bound, scale: float, variance: Fraction, bits: int) -> None:
    assert needed(spec(bound, scale=scale, variance=variance), 100) == bits


def test_the_error_says_how_many_bits_are_needed() -> None:
    asked = spec(L2(1.0), scale=128.0, variance=Fraction(256), bits=12)
    with pytest.raises(SpecError, match="part 'x' has 12 bits, but 100 clients need 13") as caught:
        Encoding(asked, cohort=100)
    assert caught.value.bits_needed == 13


def test_noise_beyond_64_bits_is_refused() -> None:
    asked = spec(LInf(1.0), scale=1.0, variance=Fraction(2**126))
    with pytest.raises(SpecError, match="needs 66 bits for 100 clients, and 64 is the most") as caught:
        asked.check_fits(100)
    assert caught.value.bits_needed == 66


@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0), Count(1)])
def test_with_the_least_bits_a_total_rarely_wraps(bound: Bound) -> None:
    """All clients at their bound, less than 5 % of 8192 coordinates do.

    Two standard deviations are exceeded with 4.6 % on both sides, and the bits are rounded up.
    """
    promise, size = NoiseAssumptions(clients=10, dropouts=0, colluders=0), 1 << 13
    variance = Fraction(100**2)
    bits = needed(spec(bound, scale=32.0, variance=variance, size=size, promise=promise), 10)
    code = Encoding(
        spec(bound, scale=32.0, variance=variance, size=size, bits=bits, promise=promise), cohort=10
    )
    vector = np.ones(size, int if isinstance(bound, Count) else float)
    vector = vector / math.sqrt(size) if isinstance(bound, L2) else vector
    total = code.zeros()
    for number in range(10):
        for mine, part in zip(total, code.encode({"x": vector}, stream(number)).residues, strict=True):
            mine += part
    decoded = code.decode(total, contributors=10, invited=10)["x"]
    sigma = 100 / 32
    if isinstance(bound, L2):  # a wrap is spread over all coordinates, so their spread tells
        assert np.square(decoded - 10 * vector).mean() < 1.1 * sigma**2
    else:
        wraps = np.abs(decoded - 10 * vector) > 7 * sigma
        assert wraps.mean() < 0.05

"""Layers of noise: drawn part after part, of the promised variances, and removed without a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.input_encoding import Encoding
from secagg.noise.gaussian import Layers, discrete_gaussian
from secagg.residue_packing import Residues
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec
from tests.secagg.encodings import stream

VARIANCE = Fraction(10_000)
CLIENTS = 20
PROMISE = NoiseAssumptions(clients=CLIENTS, dropouts=6, colluders=2, removable=True)


def spec(promise: NoiseAssumptions = PROMISE) -> SumSpec:
    """Parts with noise and without, of every width of word, the third padded from 5 elements to 8."""
    return SumSpec(
        parts=(
            Part(name="a", size=7, bits=16, bound=LInf(1.0), noise=Noise(scale=10.0, variance=VARIANCE)),
            Part(name="b", size=3, bits=5, bound=Residue()),
            Part(name="c", size=5, bits=40, bound=L2(1.0), noise=Noise(scale=9.5, variance=3 * VARIANCE)),
            Part(name="d", size=4, bits=30, bound=Count(3), noise=Noise(scale=8.0, variance=VARIANCE / 7)),
        ),
        promise=promise,
    )


def copied(residues: Sequence[Residues]) -> list[Residues]:
    return [part.copy() for part in residues]


def layer_by_oracle(layer: int, roster: int, number: int) -> list[list[int]]:
    """One stream, part after part; parts without noise take nothing of it."""
    source, share = stream(number), PROMISE.components(roster)[layer]
    noise: list[list[int]] = []
    for part in spec().parts:
        law = discrete_gaussian(part.noise.variance * share) if part.noise else None
        noise.append(law.sample(source, part.width).tolist() if law else [0] * part.width)
    return noise


def added(before: Sequence[Residues], after: Sequence[Residues]) -> list[list[int]]:
    """What was added, as the number nearest to zero in the part's type."""
    return [
        (new - old).view(f"<i{old.itemsize}").astype(int).tolist()
        for old, new in zip(before, after, strict=True)
    ]


@pytest.mark.parametrize("roster", [CLIENTS, 9, 15])
def test_every_layer_is_added_from_a_stream_of_its_own(roster: int) -> None:
    residues = Encoding(spec(), cohort=CLIENTS).zeros()[:-1]
    layers = Layers(spec(), roster=roster)
    count = 1 + PROMISE.seeds
    layers.add_to(residues, [stream(number) for number in range(count)])
    expected = [layer_by_oracle(layer, roster, number=layer) for layer in range(count)]
    sums = [[sum(column) for column in zip(*rows, strict=True)] for rows in zip(*expected, strict=True)]
    assert added([np.zeros_like(part) for part in residues], residues) == sums


@given(st.integers(9, CLIENTS), st.data(), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_removing_what_is_surplus_leaves_the_layers_that_stay(
    roster: int, data: st.DataObject, seed: int
) -> None:
    """To the last bit, in whatever was there before, and the hidden count is not touched."""
    dropped = data.draw(st.integers(0, PROMISE.dropouts))
    surplus = PROMISE.surplus(roster, roster - dropped)
    rng = np.random.default_rng(seed)
    before = [
        rng.integers(0, 2**63, len(part)).astype(part.dtype)
        for part in Encoding(spec(), cohort=CLIENTS).zeros()
    ]
    after, layers = copied(before), Layers(spec(), roster=roster)
    count = 1 + PROMISE.seeds
    layers.add_to(after[:-1], [stream(number) for number in range(count)])
    for layer in surplus:
        layers.remove(layer, after, stream(layer))
    expected = copied(before)
    for layer in set(range(count)) - set(surplus):
        for part, noise in zip(expected[:-1], layer_by_oracle(layer, roster, number=layer), strict=True):
            part += np.array(noise, np.int64).astype(f"<i{part.itemsize}").view(part.dtype)
    assert [part.tolist() for part in after] == [part.tolist() for part in expected]


def test_without_noise_nothing_is_drawn() -> None:
    plain = SumSpec(parts=(Part(name="x", size=3, bits=8, bound=Residue()),))
    residues = [np.arange(3, dtype=np.uint8)]
    Layers(plain, roster=4).add_to(residues, [])
    assert residues[0].tolist() == [0, 1, 2]


def test_encoding_adds_the_layer_that_stays_from_the_stream_that_rounds() -> None:
    """Counts are not rounded, so their noise is the first of the stream; then come the removable layers."""
    bins = Part(name="x", size=9, bits=32, bound=Count(1), noise=Noise(scale=4.0, variance=VARIANCE))
    code = Encoding(SumSpec(parts=(bins,), promise=PROMISE), cohort=CLIENTS)
    noise = [stream(number) for number in range(1, 1 + PROMISE.seeds)]
    residues = code.encode({"x": [1] * 9}, stream(0), noise=noise).residues[0]
    expected = np.full(9, 4)
    for layer, share in enumerate(PROMISE.components(CLIENTS)):
        expected += discrete_gaussian(VARIANCE * share).sample(stream(layer), 9)
    assert residues.view(np.int32).tolist() == expected.tolist()


@pytest.mark.parametrize("dropped", [0, 3, 6])
@pytest.mark.parametrize("roster", [CLIENTS, 12])
def test_the_noise_that_stays_has_the_promised_variance(dropped: int, roster: int) -> None:
    """Measured on what all survivors leave in 2^16 coordinates.

    Its relative standard error is sqrt(2 / 65536) = 0.55 %, and six of them are a false alarm of 2e-9 each.
    """
    size, survivors = 1 << 16, roster - dropped
    zeros = Part(name="x", size=size, bits=32, bound=LInf(1.0), noise=Noise(scale=1.0, variance=VARIANCE))
    layers = Layers(SumSpec(parts=(zeros,), promise=PROMISE), roster=roster)
    shares, surplus = PROMISE.components(roster), PROMISE.surplus(roster, survivors)
    total = [np.zeros(size, np.uint32)]
    for client in range(survivors):
        seeds = [1000 * client + layer for layer in range(len(shares))]
        layers.add_to(total, [stream(seed) for seed in seeds])
        for layer in surplus:
            layers.remove(layer, total, stream(seeds[layer]))
    noise = total[0].view(np.int32).astype(float)
    kept = sum(share for layer, share in enumerate(shares) if layer not in surplus)
    expected = float(survivors * kept * VARIANCE)
    assert np.square(noise).mean() == pytest.approx(expected, rel=6 * math.sqrt(2 / size))
    assert abs(noise.mean()) < 6 * math.sqrt(expected / size)

"""The verifier's own idea of noise, next to the package's and to vectors that neither of them wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from hashlib import sha256
from itertools import chain, product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.vectors.describe import describe_part, vars_of
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.noise.hadamard_rotation import Rotation
from secagg.sum_spec import L2, Bound, Count, LInf, Part
from tests import verifier_noise as second
from tests.verifier_tools import digest, u32

FOLDER = Path(__file__).resolve().parent.parent / "vectors"
TRANSCRIPT: dict[str, Any] = json.loads((FOLDER / "transcript-noise.json").read_text(encoding="ascii"))
WIDE: dict[str, Any] = json.loads((FOLDER / "transcript-noise-wide.json").read_text(encoding="ascii"))
SAMPLES: dict[str, Any] = json.loads((FOLDER / "discrete-gaussian.json").read_text(encoding="ascii"))
Case = dict[str, Any]


def variance_of(case: Case) -> str:
    return str(case["variance"])


# --- who adds how much -------------------------------------------------------------------------------


def promises() -> Iterator[NoiseAssumptions]:
    for clients, dropouts, colluders, removable in product((4, 9, 60, 1000), range(4), range(3), (0, 1)):
        if dropouts + colluders < clients:
            yield NoiseAssumptions(
                clients=clients, dropouts=dropouts, colluders=colluders, removable=bool(removable)
            )


def rosters(promise: NoiseAssumptions) -> set[int]:
    least, most = promise.least_roster, promise.clients
    return {least, (least + most) // 2, most}


def test_components_and_surplus() -> None:
    tried = 0
    for promise in promises():
        for roster in rosters(promise):
            assert tuple(second.components(vars_of(promise), roster)) == promise.components(roster)
            for survivors in range(roster - promise.dropouts, roster + 1):
                removed = second.surplus(vars_of(promise), roster, survivors)
                assert tuple(removed) == promise.surplus(roster, survivors)
                tried += 1

    assert tried > 400


def test_as_much_stays_as_is_needed() -> None:
    tried = 0
    for promise in promises():
        for roster in rosters(promise):
            for survivors in range(roster - promise.dropouts, roster + 1):
                assert second.kept(vars_of(promise), roster, survivors) >= 1
                tried += promise.seeds > 0 and no_unit_more_can_go(promise, roster, survivors)

    assert tried > 100


def no_unit_more_can_go(promise: NoiseAssumptions, roster: int, survivors: int) -> bool:
    """With one unit less, a survivor would have less than its part of what is needed."""
    shares = second.components(vars_of(promise), roster)
    removed = second.surplus(vars_of(promise), roster, survivors)
    stays = sum((share for at, share in enumerate(shares) if at not in removed), Fraction(0))
    return stays - shares[1] < shares[0] * roster / survivors <= stays


# --- the grid ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 8, 9, 1000])
@pytest.mark.parametrize("bound", [L2(1.5), LInf(0.25), LInf(3.0), Count(1, 1), Count(3, 7), Count(5)])
@pytest.mark.parametrize("scale", [1.0, 7.0, 1024.0, 100_001.0])
def test_grid(size: int, bound: Bound, scale: float) -> None:
    part = Part(name="x", size=size, bits=64, bound=bound, noise=Noise(scale=scale, variance=Fraction(100)))
    described = {**describe_part(part), "width": None, "norm2": None}

    assert second.width(described) == part.width
    assert second.largest_norm2(described) == part.norm2


def test_rotation() -> None:
    seed, part = bytes(range(32)), TRANSCRIPT["table"]["update"]["parts"][0]
    vector = np.array([0.5, -0.25, 0.125, -1.0, 0.0, 0.0, 0.0, 0.0])
    rotation = Rotation(seed, 3, len(vector))
    points = second.grid_points(part, vector[:5].tolist(), digest("rotation", seed, u32(3)))
    rotation.apply(vector)

    assert points == pytest.approx((vector * rotation.factor * part["noise"]["scale"]).tolist())


# --- samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [case for case in SAMPLES["laws"] if case["variance"] in ("1/4", "100", "10000", "1000000")],
    ids=variance_of,
)
def test_samples(case: Case) -> None:
    """More than one block, of words of 16 and of 32 bits, of which 17 or 20 look up a sample."""
    stream = second.Stream(bytes.fromhex(case["seed"]))
    samples = second.draw(stream, Fraction(case["variance"]), SAMPLES["size"])

    assert samples[:64] == [*chain(*case["first"])]
    assert sha256(np.array(samples, "<i8").tobytes()).hexdigest() == case["sha256"]


def wide_streams() -> Iterator[second.Stream]:
    for entry in WIDE["sums"]:
        for given in entry["inputs"].values():
            yield from (second.Stream(bytes.fromhex(seed)) for seed in given["noise_streams"])


def test_wide_words_are_used_whole() -> None:
    """Though 20 of the 32 bits of a word look up a sample, the other 12 are bits of it, too. If they were
    read from the stream once more, three samples in the transcript would differ."""
    (part,), promise = WIDE["table"]["vector"]["parts"], WIDE["table"]["vector"]["promise"]
    variance = second.components(promise, 5)[1] * Fraction(part["noise"]["variance"])
    steps, size = second.thresholds(variance), part["width"]
    known = max(16, len(steps).bit_length() + 5)
    whole = [second.draw(stream, variance, size) for stream in wide_streams()]
    part_of = [
        second._block(stream, [word >> 32 - known for word in stream.numbers(4, size)], known, known, steps)
        for stream in wide_streams()
    ]

    assert known == 20
    assert (
        sum(
            a != b for one, other in zip(whole, part_of, strict=True) for a, b in zip(one, other, strict=True)
        )
        == 3
    )


def staying_noise() -> Iterator[float]:
    """Samples of component 0 in the transcript, in standard deviations."""
    for entry in TRANSCRIPT["sums"]:
        spec = TRANSCRIPT["table"][entry["kind"]]
        share = second.components(spec["promise"], len(entry["roster"]))[0]
        deviations = {
            part["name"]: sqrt(share * Fraction(part["noise"]["variance"]))
            for part in spec["parts"]
            if "noise" in part
        }
        for given in entry["inputs"].values():
            for name, samples in given["noise"].items():
                yield from (sample / deviations[name] for sample in samples)


def test_staying_noise_has_its_variance() -> None:
    """No seed tells what stays; but all of it together is as large as it should be, within 4 deviations."""
    squares = [sample**2 for sample in staying_noise()]

    assert len(squares) > 160
    assert abs(sum(squares) - len(squares)) < 4 * sqrt(2 * len(squares))

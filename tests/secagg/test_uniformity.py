"""What a server sees of a client: uniform bits, at every b, for the most telling inputs.

Each b has a session of its own with three sums: of zeros, of the largest residue, and of a constant. The
clients are real machines with fixed seeds; what is judged is the bytes of their masked inputs. All
comparisons of this file together raise a false alarm, over the choice of the seeds, with a probability
below 1e-6: there are fewer than 20,000 of them, each with a bound of 5e-11.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg.residue_packing import Residues, dtype_for
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig, residue_table
from tests.secagg.chance import chi_square, chi_square_limit, coin_slack

SIZE = 1 << 13
KINDS = ("zeros", "largest", "constant")
CLIENTS = 3
EVERY_B = pytest.mark.parametrize("bits", range(1, 65))

# Per b: 2 histograms and b bit positions of 3 sums and 3 + 1 differences, 8 bit positions and 1 histogram
# of 3 frames. With b = 32.5 on average, that is 64 * (7 * 34.5 + 27) = 17184 comparisons.
CHANCE = 1e-6 / 20_000


def plain(kind: str, bits: int) -> Residues:
    value = {"zeros": 0, "largest": (1 << bits) - 1, "constant": (1 << bits) // 3}[kind]
    return np.full(SIZE, value, dtype_for(bits))


@cache
def session(bits: int) -> tuple[dict[str, Residues], dict[str, bytes], Residues]:
    """(client 0's masked residues by input, its frames' data, client 1's masked zeros)."""
    table = residue_table(SIZE, bits=bits, kinds=KINDS)
    rig = Rig(CLIENTS, Trust.CURIOUS, table=table, seed=bytes([bits]))
    cohort = rig.set_up(threshold=2)
    residues, frames = {}, {}
    other: Residues = np.zeros(0, np.uint8)
    for index, kind in enumerate(KINDS):
        query = rig.query(cohort, index, range(CLIENTS), kind=kind)
        rig.send(0, query)
        frames[kind] = rig.answer(0, plain(kind, bits)).data
        question = rig.question(cohort, query)
        residues[kind] = rig.residues(question, frames[kind])[0]
        if kind == "zeros":
            rig.send(1, query)
            other = rig.residues(question, rig.answer(1, plain(kind, bits)).data)[0]
    return residues, frames, other


def assert_uniform(residues: Residues, bits: int) -> None:
    """The top eight bits, the bottom eight bits, and every bit by itself."""
    wide = residues.astype(np.uint64)
    width = min(bits, 8)
    for shift in {0, bits - width}:
        cells = (wide >> np.uint64(shift)) & np.uint64((1 << width) - 1)
        counts = np.bincount(cells.astype(np.int64), minlength=1 << width)
        assert chi_square(counts) <= chi_square_limit(1 << width, CHANCE)
    for bit in range(bits):
        ones = int(((wide >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - SIZE / 2) < coin_slack(SIZE, CHANCE)
    if bits < 64:
        assert int(wide.max()) < 1 << bits


def difference(one: Residues, other: Residues, bits: int) -> NDArray[Any]:
    wide = one.astype(np.uint64) - other.astype(np.uint64)
    return wide & np.uint64((1 << bits) - 1)


@EVERY_B
@pytest.mark.parametrize("kind", KINDS)
def test_masked_residues_are_uniform_for_any_input(kind: str, bits: int) -> None:
    residues, _, _ = session(bits)
    assert_uniform(residues[kind], bits)


@EVERY_B
def test_the_masks_of_two_sums_are_unrelated(bits: int) -> None:
    """With one mask for both, the difference of two masked inputs would be that of the inputs."""
    residues, _, _ = session(bits)
    for one, other in (("zeros", "largest"), ("zeros", "constant"), ("largest", "constant")):
        assert_uniform(difference(residues[one], residues[other], bits), bits)


@EVERY_B
def test_the_masks_of_two_clients_are_unrelated(bits: int) -> None:
    residues, _, other = session(bits)
    assert_uniform(difference(residues["zeros"], other, bits), bits)


@EVERY_B
@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_masked_input_are_uniform(kind: str, bits: int) -> None:
    """The frame as it travels, the hidden count included: no element, part or bit of it stands out."""
    _, frames, _ = session(bits)
    data = np.frombuffer(frames[kind], np.uint8)
    assert len(data) == SIZE * bits // 8 + 8
    nibbles = np.bincount(np.concatenate([data & 15, data >> 4]), minlength=16)
    assert chi_square(nibbles) <= chi_square_limit(16, CHANCE)
    for bit in range(8):
        ones = int(((data >> bit) & 1).sum())
        assert abs(ones - len(data) / 2) < coin_slack(len(data), CHANCE)


def test_the_hidden_count_is_masked_too() -> None:
    """It is one for everybody; in the open it would mark the end of every frame."""
    counts = [session(bits)[1][kind][-8:] for bits in range(1, 65) for kind in KINDS]
    assert len(set(counts)) == len(counts)
    ones = sum(int.from_bytes(count, "little").bit_count() for count in counts)
    assert abs(ones - 32 * len(counts)) < coin_slack(64 * len(counts), CHANCE)


@pytest.mark.parametrize("bits", [1, 8, 13, 64])
def test_inputs_without_masks_would_not_pass(bits: int) -> None:
    for kind in KINDS:
        with pytest.raises(AssertionError):
            assert_uniform(plain(kind, bits), bits)

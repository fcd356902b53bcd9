"""From values to residues and back, without noise: nothing wraps, nothing is lost beyond the grid."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import CorruptTotal, InputError, SpecError
from secagg.input_encoding import Encoding
from secagg.residue_packing import Residues
from secagg.sum_spec import COUNT_BITS, L2, Bound, Count, LInf, Part, Residue, SumSpec
from tests.secagg.encodings import encode_one, encoding, signed, stream, total_of

# --- fixed point -----------------------------------------------------------------------------------

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def real_sums(draw: st.DrawFn) -> tuple[Encoding, list[list[float]]]:
    """A cohort, a bound, bits that fit, and the vectors of some of its clients, most near the bound."""
    cohort = draw(st.integers(1, 1024))
    bits = draw(st.integers(cohort.bit_length() + 1, 64))
    limit = draw(st.floats(1e-12, 1e12))
    bound = L2(limit) if draw(st.booleans()) else LInf(limit)
    value = st.one_of(FINITE, st.floats(-limit, limit), st.sampled_from([limit, -limit, 0.0]))
    size = draw(st.integers(1, 4))
    vectors = st.lists(st.lists(value, min_size=size, max_size=size), min_size=1, max_size=min(cohort, 4))
    return encoding(bound, size=size, bits=bits, cohort=cohort), draw(vectors)


@given(real_sums())
@settings(deadline=None, max_examples=200)
def test_no_honest_cohort_can_wrap(case: tuple[Encoding, list[list[float]]]) -> None:
    code, vectors = case
    part = code.spec.parts[0]
    levels = code.levels(part)
    assert levels >= 1
    assert code.cohort * levels <= (1 << (part.bits - 1)) - 1
    for number, vector in enumerate(vectors):
        assert max(map(abs, encode_one(code, vector, number))) <= levels


def clipped_by_oracle(vector: list[float], bound: Bound) -> list[float]:
    assert isinstance(bound, (L2, LInf))
    if isinstance(bound, LInf):
        return [max(-bound.limit, min(bound.limit, value)) for value in vector]
    small = [value / 2.0**8 for value in vector]  # so that the norm of four huge values is finite
    norm = math.hypot(*small)
    return [value / norm * bound.limit for value in small] if norm * 2.0**8 > bound.limit else vector


@given(real_sums())
@settings(deadline=None, max_examples=200)
def test_the_total_is_within_one_grid_step_per_client(case: tuple[Encoding, list[list[float]]]) -> None:
    """Beside the grid, only float64 itself limits the result: a few units in its last place."""
    code, vectors = case
    bound = code.spec.parts[0].bound
    assert isinstance(bound, (L2, LInf))
    expected = np.sum([clipped_by_oracle(vector, bound) for vector in vectors], axis=0)
    total = total_of(code, vectors)
    step = 1 / code.scale(code.spec.parts[0])
    allowed = len(vectors) * (step + bound.limit * 2.0**-49)
    assert np.abs(total["x"] - expected).max() <= allowed
    assert (total.count, total.invited) == (len(vectors), code.cohort)


@given(st.sampled_from([L2, LInf]), st.integers(1, 300), st.integers(0, 40), st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_whole_cohort_at_its_bound_does_not_wrap(
    bound: Any, cohort: int, spare: int, negative: bool
) -> None:
    bits = cohort.bit_length() + 1 + spare
    code = encoding(bound(0.1), size=1, bits=bits, cohort=cohort)
    value = -0.1 if negative else 0.1
    total = total_of(code, [[value]] * cohort)["x"][0]
    assert total == pytest.approx(cohort * value, rel=1e-12)


def test_grid_points_are_carried_exactly() -> None:
    code = encoding(LInf(127.0), size=255, bits=8, cohort=1)
    assert code.levels(code.spec.parts[0]) == 127
    assert code.scale(code.spec.parts[0]) == 1.0
    values = np.arange(-127.0, 128.0)
    assert total_of(code, [values])["x"].tolist() == values.tolist()


@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (3, 3), (63, (1 << 62) - 1), (64, (1 << 63) - 1)])
def test_one_client_uses_the_whole_ring(bits: int, levels: int) -> None:
    code = encoding(LInf(1.0), size=2, bits=bits, cohort=1)
    assert code.levels(code.spec.parts[0]) == levels
    up, down = encode_one(code, [1.0, -1.0])
    assert up == -down
    assert levels - (1 << 10) < up <= levels  # above 2^53, the nearest float below the level
    assert total_of(code, [[1.0, -1.0]])["x"].tolist() == pytest.approx([1.0, -1.0], rel=1e-15)


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">f4", ">i8"]
)
def test_any_real_or_whole_type_up_to_64_bits_is_taken(dtype: str) -> None:
    code = encoding(LInf(8.0), bits=40, cohort=2)
    vector = np.array([0, 1, 5], dtype=dtype)
    kept = vector.copy()
    assert total_of(code, [vector])["x"] == pytest.approx([0, 1, 5], abs=1e-9)
    assert (vector == kept).all()


def test_the_input_is_never_changed() -> None:
    vector = np.array([3.0, -4.0, 0.0])
    for bound in (L2(1.0), LInf(1.0), LInf(9.0)):
        encoding(bound).encode({"x": vector}, stream())
        assert vector.tolist() == [3.0, -4.0, 0.0]


def test_scale_is_one_for_whole_numbers() -> None:
    for bound in (Count(3), Residue()):
        code = encoding(bound)
        assert code.scale(code.spec.parts[0]) == 1.0


# --- long vectors ----------------------------------------------------------------------------------

BLOCK = 1 << 14  # coordinates converted at a time
LENGTHS = pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])


def rounded_by_oracle(code: Encoding, vector: Sequence[float]) -> list[int]:
    """One coordinate after the other: scaled, and up if the next draw is below its fraction."""
    scale = code.scale(code.spec.parts[0])
    rounded = []
    for value, draw in zip(vector, stream().words(len(vector)).tolist(), strict=True):
        scaled = value * scale
        whole = math.floor(scaled)
        rounded.append(whole + ((draw >> 11) < math.floor((scaled - whole) * 2.0**53)))
    return rounded


@LENGTHS
@pytest.mark.parametrize("bits", [7, 16, 20, 33])
def test_every_coordinate_has_a_draw_of_its_own_in_order(size: int, bits: int) -> None:
    code = encoding(LInf(1.0), size=size, bits=bits)
    vector = np.random.default_rng(size).uniform(-0.999, 0.999, size)
    assert encode_one(code, vector) == rounded_by_oracle(code, vector.tolist())
    assert encode_one(code, vector[::-1].copy()[::-1]) == encode_one(code, vector)


@LENGTHS
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_a_norm_is_that_of_the_whole_vector(size: int, limit: float) -> None:
    code = encoding(L2(limit), size=size, bits=48)
    vector = np.random.default_rng(size).normal(0.0, 1.0, size)
    norm = math.sqrt(math.fsum(value * value for value in vector.tolist()))
    shrunk = vector * min(1.0, limit / norm)
    encoded = code.encode({"x": vector}, stream())
    assert encoded.clipped == ({"x": pytest.approx(limit / norm, rel=1e-12)} if norm > limit else {})
    errors = np.array(signed(encoded.residues[0], 48)) - shrunk * code.scale(code.spec.parts[0])
    assert np.abs(errors).max() < 1.01


@LENGTHS
@pytest.mark.parametrize("place", [0, BLOCK - 2, -1])
def test_one_coordinate_anywhere_is_noticed(size: int, place: int) -> None:
    code, vector = encoding(LInf(1.0), size=size), np.zeros(size)
    vector[place] = -4.0
    encoded = code.encode({"x": vector}, stream())
    assert encoded.clipped == {"x": 0.25}
    (touched,) = np.flatnonzero(encoded.residues[0])
    assert touched == place % size
    for value in (math.nan, math.inf, -math.inf):
        vector[place] = value
        with pytest.raises(InputError, match="NaN or infinity"):
            code.encode({"x": vector}, stream())


@LENGTHS
@pytest.mark.parametrize("bits", [7, 16, 20, 33, 64])
def test_every_total_is_decoded(size: int, bits: int) -> None:
    code = encoding(LInf(3.0), size=size, bits=bits, cohort=2)
    part, rng = code.spec.parts[0], np.random.default_rng(bits)
    residues: Residues = rng.integers(0, (1 << bits) - 1, size, dtype=np.uint64, endpoint=True)
    held = residues.astype(code.zeros()[0].dtype)
    total = code.decode((held, np.ones(1, np.uint64)), contributors=1, invited=2)["x"]
    assert total.dtype == np.float64
    assert total.tolist() == [value / code.scale(part) for value in signed(residues, bits)]


@pytest.mark.parametrize("bound", [L2(1.0), LInf(1.0)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_long_vector_takes_the_memory_of_its_result_and_a_few_blocks(bound: Bound, dtype: str) -> None:
    size = 32 * BLOCK
    code, vector = encoding(bound, size=size, bits=20), np.ones(size, dtype)
    tracemalloc.start()
    residues = code.encode({"x": vector}, stream()).residues
    encoding_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tracemalloc.start()
    code.decode(residues, contributors=1, invited=4)
    decoding_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert encoding_peak < 4 * size + 8 * 8 * BLOCK
    assert decoding_peak < 8 * size + 4 * 8 * BLOCK


# --- whole numbers ---------------------------------------------------------------------------------


@st.composite
def whole_sums(draw: st.DrawFn) -> tuple[Encoding, list[list[int]]]:
    cohort = draw(st.integers(1, 200))
    limit = draw(st.integers(1, ((1 << 64) - 1) // cohort))
    bits = draw(st.integers((cohort * limit).bit_length(), 64))
    vectors = st.lists(
        st.lists(st.integers(0, limit), min_size=3, max_size=3), min_size=1, max_size=min(cohort, 5)
    )
    return encoding(Count(limit), bits=bits, cohort=cohort), draw(vectors)


@given(whole_sums())
@settings(deadline=None)
def test_counts_are_summed_exactly(case: tuple[Encoding, list[list[int]]]) -> None:
    code, vectors = case
    total = total_of(code, vectors)["x"]
    assert total.dtype == np.uint64
    assert total.tolist() == [sum(column) for column in zip(*vectors, strict=True)]


@given(st.integers(1, 64), st.data())
@settings(deadline=None)
def test_residues_are_summed_modulo_their_ring(bits: int, data: st.DataObject) -> None:
    rows = st.lists(st.integers(0, (1 << bits) - 1), min_size=3, max_size=3)
    vectors = data.draw(st.lists(rows, min_size=1, max_size=6))
    arrays = [np.array(row, dtype=np.uint64) for row in vectors]
    total = total_of(encoding(Residue(), bits=bits), arrays)["x"]
    assert total.tolist() == [sum(column) % (1 << bits) for column in zip(*vectors, strict=True)]


def test_a_cohort_of_largest_counts_fills_the_ring() -> None:
    limit = ((1 << 64) - 1) // 5
    code = encoding(Count(limit), size=1, bits=64, cohort=5)
    assert total_of(code, [[limit]] * 5)["x"].tolist() == [5 * limit]


# --- what does not fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [{}, {"y": [0.0] * 3}, {"x": [0.0] * 3, "y": [0.0]}, [("x", [0.0] * 3)], None]
)
def test_values_name_exactly_the_parts(values: Any) -> None:
    with pytest.raises(InputError, match="values must be a mapping with exactly the parts x"):
        encoding(LInf(1.0)).encode(values, stream())


def test_no_vector_fits_no_cohort() -> None:
    with pytest.raises(SpecError, match="at least one client"):
        encoding(Residue(), cohort=0)


# --- the hidden count and the wire -----------------------------------------------------------------


def test_every_client_adds_one_to_a_hidden_count() -> None:
    code = encoding(Count(1), bits=8)
    encoded = code.encode({"x": [0, 1, 0]}, stream())
    assert [part.tolist() for part in encoded.residues] == [[0, 1, 0], [1]]
    assert encoded.residues[-1].dtype.itemsize * 8 == COUNT_BITS == 64


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 63])
def test_a_wrong_count_discards_the_total(count: int) -> None:
    code = encoding(Count(1), bits=8)
    residues = code.zeros()
    residues[-1][0] = 2
    assert code.decode(residues, contributors=2, invited=4).count == 2
    residues[-1][0] = count
    with pytest.raises(CorruptTotal, match="some masks did not cancel"):
        code.decode(residues, contributors=2, invited=4)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 64)), min_size=1, max_size=4),
    st.integers(0, 1 << 32),
)
@settings(deadline=None)
def test_a_masked_input_is_packed_part_by_part(layout: list[tuple[int, int]], seed: int) -> None:
    parts = tuple(
        Part(name=f"p{k}", size=size, bits=bits, bound=Residue()) for k, (size, bits) in enumerate(layout)
    )
    code = Encoding(SumSpec(parts=parts), cohort=2)
    rng = np.random.default_rng(seed)
    residues = tuple(
        rng.integers(0, (1 << 64) - 1, len(zeros), dtype=np.uint64, endpoint=True).astype(zeros.dtype)
        for zeros in code.zeros()
    )
    data = code.pack(residues)
    expected = sum((size * bits + 7) // 8 for size, bits in layout) + 8
    assert len(data) == code.spec.packed_bytes == expected
    back = code.unpack(data)
    assert [part.tolist() for part in back] == [part.tolist() for part in residues]
    for part, (_, bits) in zip(back, layout, strict=False):
        assert int(part.max()) < 1 << bits


def test_a_masked_input_of_another_length_is_not_accepted() -> None:
    code = encoding(Residue(), size=3, bits=3)
    data = code.pack(code.zeros())
    assert code.accepts(data)
    assert not code.accepts(data[:-1])
    assert not code.accepts(data + b"\0")
    assert not code.accepts(b"")


def test_a_masked_input_with_a_padding_bit_is_not_accepted() -> None:
    code = encoding(Residue(), size=3, bits=3)  # nine bits, hence seven of padding
    data = bytearray(code.pack(code.zeros()))
    data[1] |= 0b10
    assert not code.accepts(bytes(data))
    data[1] = 0b1
    assert code.accepts(bytes(data))


def test_an_encoded_input_shows_nothing_of_itself() -> None:
    code = encoding(LInf(1.0), size=1, bits=16, cohort=1)
    assert repr(code.encode({"x": [2.0]}, stream())) == "Encoded(parts=2, clipped=1)"

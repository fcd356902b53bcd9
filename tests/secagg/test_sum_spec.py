"""Parts, specs and tables: what is accepted, how many bits a cohort needs, and what a digest covers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError, SpecTooLarge
from secagg.input_encoding import Encoding
from secagg.sum_spec import (
    L2,
    MAX_ELEMENTS,
    MAX_PACKED,
    MAX_TIMES,
    Bound,
    Count,
    LInf,
    Part,
    Residue,
    SumSpec,
    Table,
    Total,
    bits_for_cohort,
)


def part(**changes: Any) -> Part:
    fields: dict[str, Any] = {"name": "x", "size": 3, "bits": 16, "bound": LInf(1.0)}
    return Part(**{**fields, **changes})


def spec(**changes: Any) -> SumSpec:
    return SumSpec(**{"parts": (part(),), **changes})


NOISE = Noise(scale=4.0, variance=Fraction(100))
PROMISE = NoiseAssumptions(clients=10, dropouts=3, colluders=2, removable=True)


def noisy_spec(**changes: Any) -> SumSpec:
    return spec(parts=(part(noise=NOISE, **changes),), promise=PROMISE)


# --- what is accepted ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "Z", "update", "a1_.-", "a" * 64])
def test_names_of_letters_digits_and_three_signs(name: str) -> None:
    assert Table({name: spec(parts=(part(name=name),), group=name)}).group_of(name) == name


@pytest.mark.parametrize("name", ["", "1a", "_a", "a b", "a\n", "ä", "a" * 65, b"a", None, 1])
def test_no_other_names(name: Any) -> None:
    with pytest.raises(SpecError, match="name of a part must be a letter followed by"):
        part(name=name)
    with pytest.raises(SpecError, match="name of a kind"):
        Table({name: spec()})
    if name is not None:
        with pytest.raises(SpecError, match="name of a group"):
            spec(group=name)


@pytest.mark.parametrize("limit", ["1", None, True, 1j, b"1"])
@pytest.mark.parametrize("bound", [L2, LInf])
def test_a_real_bound_is_a_number(bound: Any, limit: Any) -> None:
    with pytest.raises(SpecError, match="must be a number"):
        bound(limit)


@pytest.mark.parametrize(
    "limit",
    [0, 0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 2.0**-501, 2.0**501, 1.7e308, 10**400],
)
@pytest.mark.parametrize("bound", [L2, LInf])
def test_a_real_bound_is_far_from_the_ends_of_float64(bound: Any, limit: float) -> None:
    """Near the ends, the scale or the total would be infinite, and infinity times zero is no number."""
    assert [bound(edge).limit for edge in (2.0**-500, 2.0**500)] == [2.0**-500, 2.0**500]
    with pytest.raises(SpecError, match=r"above zero, from 2\^-500 to 2\^500"):
        bound(limit)


@pytest.mark.parametrize("bound", [L2, LInf])
def test_a_real_bound_is_the_float_that_both_sides_compute_with(bound: Any) -> None:
    assert type(bound(3).limit) is float
    assert bound(3) == bound(3.0)
    assert bound(2**53 + 1).limit == 2.0**53


@pytest.mark.parametrize("limit", [0, -1, 1 << 64, 1.0, True, "1", None])
def test_a_count_has_a_whole_limit_of_at_most_64_bits(limit: Any) -> None:
    assert Count((1 << 64) - 1).limit == (1 << 64) - 1
    with pytest.raises(SpecError, match="limit of a count must be a whole number from 1 to"):
        Count(limit)


@pytest.mark.parametrize("size", [0, -1, MAX_ELEMENTS + 1, 3.0, True, None])
def test_the_size_of_a_part_is_a_whole_number(size: Any) -> None:
    assert part(size=MAX_ELEMENTS).size == MAX_ELEMENTS
    with pytest.raises(SpecError, match="size of part 'x' must be a whole number from 1 to"):
        part(size=size)


@pytest.mark.parametrize("bits", [0, -1, 65, 8.0, True, None])
def test_the_bits_of_a_part_are_from_1_to_64(bits: Any) -> None:
    assert [part(bits=b).bits for b in (1, 64)] == [1, 64]
    with pytest.raises(SpecError, match="bits of part 'x' must be a whole number from 1 to 64"):
        part(bits=bits)


@pytest.mark.parametrize("bound", [None, 1.0, L2, "L2"])
def test_a_bound_is_one_of_four(bound: Any) -> None:
    with pytest.raises(SpecError, match="bound of part 'x' must be L2, LInf, Count or Residue"):
        part(bound=bound)


@pytest.mark.parametrize("parts", [(), [], [part()], None, part()])
def test_a_spec_needs_a_tuple_of_parts(parts: Any) -> None:
    with pytest.raises(SpecError, match="tuple of at least one part"):
        spec(parts=parts)


def test_a_spec_is_made_of_parts_with_different_names() -> None:
    with pytest.raises(SpecError, match="must be Part objects"):
        spec(parts=(part(), "y"))
    with pytest.raises(SpecError, match="the same name"):
        spec(parts=(part(), part(size=9)))


def test_a_spec_fits_in_a_message() -> None:
    """Ten bytes are taken by the hidden count and the other part."""
    largest = part(name="y", size=MAX_PACKED - 10, bits=8, bound=Residue())
    assert spec(parts=(part(size=1, bits=16), largest)).parts[1] == largest
    with pytest.raises(SpecTooLarge, match=f"at most {MAX_PACKED} bytes; split it into several sums"):
        spec(parts=(part(size=1, bits=17), largest))


@pytest.mark.parametrize("times", [0, -1, MAX_TIMES + 1, 1.0, True, None])
def test_times_is_a_whole_number(times: Any) -> None:
    assert spec(times=MAX_TIMES).times == MAX_TIMES
    with pytest.raises(SpecError, match="times must be a whole number"):
        spec(times=times)


def test_a_table_has_at_least_one_spec() -> None:
    with pytest.raises(SpecError, match="at least one kind"):
        Table({})
    nothing: Any = None
    with pytest.raises(SpecError, match="kind 'a' must be described by a SumSpec"):
        Table({"a": nothing})


# --- noise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [0, -1, 4, 1 << 64, 1.0, True, "1"])
def test_the_total_of_counts_is_a_whole_number_from_their_limit_on(total: Any) -> None:
    """Less would make the limit say something that is not so."""
    assert [Count(5, edge).total for edge in (None, 5, (1 << 64) - 1)] == [None, 5, (1 << 64) - 1]
    with pytest.raises(SpecError, match="total of a count must be a whole number from 5 to"):
        Count(5, total)


@pytest.mark.parametrize("noise", [1.0, 0, (1.0, 2.0), PROMISE])
def test_noise_is_a_noise(noise: Any) -> None:
    with pytest.raises(SpecError, match="noise of part 'x' must be a Noise"):
        part(noise=noise)


def test_residues_have_no_noise() -> None:
    with pytest.raises(SpecError, match="part 'x' holds residues, and noise would hide all of them"):
        part(bound=Residue(), noise=NOISE)


def test_counts_are_scaled_by_a_whole_number() -> None:
    assert part(bound=Count(3), noise=NOISE).noise == NOISE
    with pytest.raises(SpecError, match="part 'x' holds counts: its noise needs a whole scale"):
        part(bound=Count(3), noise=replace(NOISE, scale=4.5))
    assert part(bound=LInf(3.0), noise=replace(NOISE, scale=4.5)).bits == 16


@pytest.mark.parametrize(
    ("bound", "size", "scale"),
    [(Count(1), 1, 2.0**31), (Count(1 << 31), 1, 1.0), (LInf(1.0), 1, 2.0**31), (Count(1, 1), 9, 2.0**31)],
)
def test_a_noisy_part_spans_at_most_2_to_the_31_grid_points(bound: Bound, size: int, scale: float) -> None:
    """Beyond, its squared norm would not fit whole numbers of 64 bits."""
    widest = part(bound=bound, size=size, noise=replace(NOISE, scale=scale))
    assert widest.norm2 == 1 << 62
    with pytest.raises(SpecError, match=r"part 'x' spans more than 2\^31 grid points; lower the scale"):
        part(bound=bound, size=size, noise=replace(NOISE, scale=scale + 1.0))


def test_no_scale_is_too_large_to_be_refused() -> None:
    for bound in (L2(2.0**500), LInf(2.0**500), Count((1 << 64) - 1)):
        with pytest.raises(SpecError, match="lower the scale"):
            part(bound=bound, noise=replace(NOISE, scale=2.0**500))


@pytest.mark.parametrize(
    ("bound", "size", "norm2"),
    [
        (L2(25.0), 3, 10_102),  # of 100 grid points and, padded, 4 elements: 100^2 + 4/4 + 100 + 2/2
        (L2(25.0), 4, 10_102),
        (LInf(25.0), 3, 30_000),
        (LInf(0.125), 100, 60),  # of 5 grid points, half of one each: 25 + 100/4 + 5 + 10/2, not 100 * 1^2
        (Count(25), 3, 30_000),
        (Count(25, 30), 3, 10_400),
    ],
)
def test_the_largest_norm_of_a_part(bound: Bound, size: int, norm2: int) -> None:
    assert part(bound=bound, size=size, noise=NOISE).norm2 == norm2


@pytest.mark.parametrize(("size", "width"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1_000_000, 1 << 20)])
def test_only_vectors_with_noise_and_a_norm_are_padded(size: int, width: int) -> None:
    assert part(size=size, bound=L2(1.0), noise=NOISE).width == width
    for other in (part(size=size, bound=L2(1.0)), part(size=size, noise=NOISE),
                  part(size=size, bound=Count(1), noise=NOISE)):  # fmt: skip
        assert other.width == size
        assert not other.is_rotated


def test_padding_is_sent() -> None:
    """In 16 bits for each of 8 elements, and 8 bytes of the hidden count."""
    assert noisy_spec(size=5, bound=L2(1.0)).packed_bytes == 8 * 2 + 8
    assert noisy_spec(size=5).packed_bytes == 5 * 2 + 8


def test_noise_needs_a_promise_and_a_promise_noise() -> None:
    assert noisy_spec().promise == PROMISE
    for parts, promise in (((part(),), PROMISE), ((part(noise=NOISE),), None)):
        with pytest.raises(SpecError, match="needs a promise if one of its parts has noise, and only then"):
            spec(parts=parts, promise=promise)
    with pytest.raises(SpecError, match="the promise of a spec must be NoiseAssumptions"):
        spec(parts=(part(noise=NOISE),), promise=(10, 3, 2))


def test_a_spec_is_private_if_all_its_parts_have_noise() -> None:
    assert noisy_spec().is_private
    assert not spec().is_private
    assert not spec(parts=(part(noise=NOISE), part(name="y")), promise=PROMISE).is_private


def test_seeds_are_those_of_the_promise() -> None:
    assert (spec().seeds, noisy_spec().seeds) == (0, PROMISE.seeds)
    assert Table({"a": spec(), "b": noisy_spec()}).seeds == PROMISE.seeds == 8


# --- bits ------------------------------------------------------------------------------------------

BOUNDS = st.one_of(
    st.builds(L2, st.floats(1e-9, 1e9)),
    st.builds(LInf, st.floats(1e-9, 1e9)),
    st.builds(Count, st.integers(1, (1 << 64) - 1)),
    st.just(Residue()),
)


def fits(bound: Bound, cohort: int, bits: int) -> bool:
    """Whether the worst honest total stays inside the ring, from first principles."""
    match bound:
        case Residue():
            return bits >= 1
        case Count(limit):
            return cohort * limit < 1 << bits
        case L2() | LInf():  # one level up and one down per client, and both totals differ from each other
            return bits >= 1 and cohort <= (1 << (bits - 1)) - 1


@given(BOUNDS, st.integers(1, 1 << 20))
@settings(deadline=None)
def test_bits_needed_is_exactly_minimal(bound: Bound, cohort: int) -> None:
    needed = bits_for_cohort(bound, cohort)
    assert fits(bound, cohort, needed)
    assert not fits(bound, cohort, needed - 1)


@given(BOUNDS, st.integers(1, 1 << 20), st.integers(1, 64))
@settings(deadline=None)
def test_a_spec_that_could_wrap_raises_and_says_what_would_fit(bound: Bound, cohort: int, bits: int) -> None:
    asked = spec(parts=(part(bound=bound, bits=bits),))
    if fits(bound, cohort, bits):
        assert Encoding(asked, cohort=cohort).cohort == cohort
        return
    with pytest.raises(SpecError) as caught:
        Encoding(asked, cohort=cohort)
    needed = caught.value.bits_needed
    assert needed is not None
    assert needed > bits
    assert fits(bound, cohort, needed)
    assert not fits(bound, cohort, needed - 1)


def test_the_error_says_how_many_bits_are_needed() -> None:
    with pytest.raises(SpecError, match="part 'x' has 8 bits, but 128 clients need 9") as caught:
        part(bits=8).check_fits(128)
    assert caught.value.bits_needed == 9
    part(bits=9).check_fits(128)


def test_no_number_of_bits_helps_beyond_64() -> None:
    wide = part(bits=64, bound=Count((1 << 64) - 1))
    wide.check_fits(1)
    with pytest.raises(SpecError, match="needs 65 bits for 2 clients, and 64 is the most") as caught:
        wide.check_fits(2)
    assert caught.value.bits_needed == 65


def test_a_table_fits_only_if_all_its_parts_do() -> None:
    narrow = spec(parts=(part(name="wide", bits=64), part(name="narrow", bits=3)))
    table = Table({"a": spec(), "b": narrow})
    table.check_fits(3)
    with pytest.raises(SpecError, match="'narrow' has 3 bits, but 4 clients need 4"):
        table.check_fits(4)


def test_other_errors_need_no_bits() -> None:
    with pytest.raises(SpecError) as caught:
        part(size=0)
    assert caught.value.bits_needed is None


# --- tables and digests ----------------------------------------------------------------------------


def test_a_table_is_a_mapping_that_nobody_can_change() -> None:
    kinds = {"b": spec(), "a": spec(times=2)}
    table = Table(kinds)
    kinds["c"] = spec()
    assert list(table) == ["b", "a"]
    assert len(table) == 2
    assert table["a"].times == 2
    assert "c" not in table
    with pytest.raises(TypeError):
        table.kinds["c"] = spec()  # type: ignore[index]


def test_a_kind_is_a_group_of_its_own_unless_it_names_one() -> None:
    table = Table({"first": spec(group="g"), "second": spec(group="g"), "alone": spec()})
    assert [table.group_of(kind) for kind in table] == ["g", "g", "alone"]


def test_equal_tables_are_one_table_in_any_order() -> None:
    one = Table({"a": spec(), "b": spec(times=2)})
    other = Table({"b": spec(times=2), "a": spec()})
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest == other.digest
    assert one != Table({"a": spec()})


def test_whole_and_real_limits_of_equal_value_are_the_same_bound() -> None:
    assert spec(parts=(part(bound=L2(2)),)).digest == spec(parts=(part(bound=L2(2.0)),)).digest


def test_every_field_of_a_spec_is_in_its_digest() -> None:
    base = part()
    parts = [
        base,
        replace(base, name="y"),
        replace(base, size=4),
        replace(base, bits=17),
        replace(base, bound=LInf(np.nextafter(1.0, 2.0))),
        replace(base, bound=L2(1.0)),
        replace(base, bound=Count(1)),
        replace(base, bound=Count(2)),
        replace(base, bound=Residue()),
    ]
    specs = [spec(parts=(p,)) for p in parts]
    specs += [spec(times=2), spec(group="x"), spec(group="y")]
    specs += [spec(parts=(base, parts[1])), spec(parts=(parts[1], base))]
    assert len({s.digest for s in specs}) == len(specs)
    tables = [Table({"a": s}) for s in specs]
    tables += [
        Table({"b": specs[0]}),
        Table({"a": specs[0], "b": specs[1]}),
        Table({"a": specs[1], "b": specs[0]}),
    ]
    assert len({t.digest for t in tables}) == len(tables)
    assert len({hash(t) for t in tables}) == len(tables)


def test_every_field_of_noise_and_promise_is_in_the_digest() -> None:
    noises = [
        NOISE,
        replace(NOISE, scale=math.nextafter(4.0, 5.0)),
        replace(NOISE, variance=Fraction(100) + Fraction(1, 10**30)),
        replace(NOISE, variance=Fraction(1, 100)),
        replace(NOISE, variance=Fraction(100, 3)),
    ]
    promises = [
        PROMISE,
        replace(PROMISE, clients=11),
        replace(PROMISE, dropouts=2),
        replace(PROMISE, colluders=3),
        replace(PROMISE, removable=False),
        replace(PROMISE, dropouts=2, colluders=3),
    ]
    specs = [spec(), *(spec(parts=(part(noise=noise),), promise=PROMISE) for noise in noises)]
    specs += [spec(parts=(part(noise=NOISE),), promise=promise) for promise in promises[1:]]
    # Which of two parts has it, and what their counts add up to.
    for pair in ((NOISE, None), (None, NOISE), (NOISE, NOISE)):
        specs.append(spec(parts=(part(noise=pair[0]), part(name="y", noise=pair[1])), promise=PROMISE))
    for total in (None, 3, 4):
        specs += [spec(parts=(part(bound=Count(3, total)),)), noisy_spec(bound=Count(3, total))]
    assert len({each.digest for each in specs}) == len(specs)


def test_equal_noise_has_one_digest() -> None:
    whole: Any = 100
    same = part(noise=Noise(scale=4, variance=whole))
    assert spec(parts=(same,), promise=PROMISE).digest == noisy_spec().digest


def test_specs_without_noise_keep_the_digests_they_had_before_there_was_any() -> None:
    assert spec().digest.hex() == "24ec19401ee915145247207a24db40d6a30d7ea6b09907c88b31761e3709ba1e"


def test_a_total_is_read_by_the_name_of_its_part() -> None:
    total = Total({"x": np.array([1.5])}, count=2, invited=3)
    assert total["x"].tolist() == [1.5]
    with pytest.raises(KeyError):
        total["y"]


def test_terms_are_part_of_the_digest() -> None:
    kinds = {"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))}
    digests = {Table(kinds, terms=terms).digest for terms in (b"", b"one", b"other")}
    assert len(digests) == 3
    assert Table(kinds).digest in digests

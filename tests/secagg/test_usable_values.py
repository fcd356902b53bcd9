"""Values that can always be sent in a sum with noise: what is clipped, what becomes zeros, what is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.clipping_and_fixed_point import checked
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import InputError, SpecError
from secagg.input_encoding import Encoding
from secagg.mask_keystream import KeyStream
from secagg.sum_spec import L2, Count, LInf, Part, SumSpec
from secagg.usable_values import Unusable, UsableValues, Zeros, usable_values, zero_values

PROMISE = NoiseAssumptions(clients=3, dropouts=0, colluders=0)


def part(name: str, size: int, bound: Count | L2 | LInf, *, noise: bool = True) -> Part:
    scale = 1.0 if isinstance(bound, Count) else 64.0
    return Part(
        name=name,
        size=size,
        bits=32,
        bound=bound,
        noise=Noise(scale=scale, variance=Fraction(100)) if noise else None,
    )


def private(*parts: Part) -> SumSpec:
    return SumSpec(parts=parts, promise=PROMISE)


VISITS = private(part("visits", 2, Count(10)))
BOTH = private(part("x", 2, L2(1.0)), part("n", 1, Count(10)))
HISTOGRAM = private(part("h", 4, Count(10, total=12)))
FINE = {"x": [0.5, 0.25], "n": [3]}


def found(spec: SumSpec, values: object) -> UsableValues:
    return usable_values(spec, lambda: values)


def lists(usable: UsableValues) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in usable.values.items()}


def test_values_that_fit_are_not_changed() -> None:
    usable = found(BOTH, {**FINE, "unused": None})

    assert lists(usable) == FINE
    assert (usable.changed, usable.clipped, usable.zeros) == (False, (), None)


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int8, np.int64, np.uint64], ids=lambda dtype: np.dtype(dtype).name
)
def test_counts_beyond_their_limit_are_clipped_to_it(dtype: Any) -> None:
    usable = found(VISITS, {"visits": np.array([27, 10], dtype)})

    assert lists(usable) == {"visits": [10, 10]}
    assert usable.changed
    assert (usable.clipped, usable.zeros) == (("visits",), None)


@pytest.mark.parametrize(
    ("values", "kept", "changed"),
    [
        ([-1, 3], [0, 3], True),
        ([2**64 - 1, 0], [10, 0], True),
        ([True, False], [1, 0], False),
        ([0, 10], [0, 10], False),
    ],
)
def test_every_whole_number_has_a_closest_count(values: Any, kept: list[int], changed: bool) -> None:
    usable = found(VISITS, {"visits": values})

    assert lists(usable) == {"visits": kept}
    assert usable.changed is changed


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ([6, 6, 0, 0], [6, 6, 0, 0]),
        ([6, 6, 6, 6], [3, 3, 3, 3]),
        ([10, 0, 10, 0], [6, 0, 6, 0]),
        ([50, 50, 50, 50], [3, 3, 3, 3]),  # each is clipped first
        ([10, 1, 1, 1], [9, 1, 1, 1]),
        ([1, 1, 1, 10], [0, 1, 1, 10]),
    ],
)
def test_counts_that_add_up_to_too_much_are_scaled_down(counts: list[int], kept: list[int]) -> None:
    usable = found(HISTOGRAM, {"h": counts})

    assert lists(usable) == {"h": kept}
    assert usable.clipped == (("h",) if counts != kept else ())


@given(
    counts=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
    limit=st.integers(1, 2**28),
    more=st.integers(0, 2**29),
)
def test_a_histogram_is_within_its_bounds_and_loses_no_more_than_it_must(
    counts: list[int], limit: int, more: int
) -> None:
    spec = private(part("h", 4, Count(limit, total=limit + more)))
    usable = found(spec, {"h": np.array(counts, np.int64)})
    kept, clipped = usable.values["h"].tolist(), [min(max(count, 0), limit) for count in counts]

    assert checked(spec.parts[0], usable.values["h"]) is not None
    assert sum(kept) == min(sum(clipped), limit + more)
    assert all(after <= before for after, before in zip(kept, clipped, strict=True))
    assert usable.changed == (kept != counts)


@pytest.mark.parametrize("values", [[3.0, 4.0], [1e300, -1e300]])
def test_real_numbers_are_left_to_the_encoding(values: list[float]) -> None:
    usable = found(BOTH, {"x": values, "n": [27]})

    assert lists(usable) == {"x": values, "n": [10]}
    assert usable.clipped == ("n",)


class Failing(Mapping[str, Any]):
    """A mapping whose values are not there when they are wanted."""

    def __getitem__(self, name: str) -> Any:
        raise OverflowError("secret 271828")

    def __iter__(self) -> Iterator[str]:
        return iter(("x", "n"))

    def __len__(self) -> int:
        return 2


class Hostile:
    """Something that numpy cannot make an array of."""

    def __array__(self, *_arguments: object, **_options: object) -> None:
        raise OverflowError("secret 271828")


@pytest.mark.parametrize(
    ("values", "reason", "detail"),
    [
        (None, Unusable.NO_MAPPING, "NoneType"),
        ([1.0], Unusable.NO_MAPPING, "list"),
        ({"x": [0.5, 0.5]}, Unusable.MISSING_PART, "n"),
        ({"n": [3]}, Unusable.MISSING_PART, "x"),
        ({**FINE, "x": [0.5]}, Unusable.UNFIT_PART, None),
        ({**FINE, "x": [0.5, np.nan]}, Unusable.UNFIT_PART, None),
        ({**FINE, "x": [0.5, -np.inf]}, Unusable.UNFIT_PART, None),
        ({**FINE, "x": ["a", "b"]}, Unusable.UNFIT_PART, None),
        ({**FINE, "x": [[1], [2, 3]]}, Unusable.UNFIT_PART, None),
        ({**FINE, "n": [3.0]}, Unusable.UNFIT_PART, None),
        ({**FINE, "n": 3}, Unusable.UNFIT_PART, None),
        ({**FINE, "n": np.ma.masked_array([3], [True])}, Unusable.UNFIT_PART, None),
        ({**FINE, "x": Hostile()}, Unusable.FAILED, "OverflowError"),
        (Failing(), Unusable.FAILED, "OverflowError"),
    ],
)
def test_what_cannot_be_used_makes_the_whole_answer_zeros(
    values: object, reason: Unusable, detail: str | None
) -> None:
    usable = found(BOTH, values)

    assert lists(usable) == {"x": [0.0, 0.0], "n": [0]}
    assert usable.changed
    assert usable.clipped == ()
    assert usable.zeros is not None
    assert usable.zeros.reason is reason
    assert detail in (None, usable.zeros.detail)


def test_a_clipped_part_is_not_reported_if_the_answer_is_zeros() -> None:
    spec = private(part("n", 1, Count(10)), part("x", 2, L2(1.0)))
    assert found(spec, {"n": [27], "x": [np.nan, 0.0]}).clipped == ()


def interrupting() -> object:
    raise KeyboardInterrupt


def raising(error: BaseException) -> Callable[[], object]:
    def compute() -> object:
        raise error

    return compute


@pytest.mark.parametrize(
    ("compute", "detail"),
    [
        (raising(RuntimeError("secret 271828")), "RuntimeError"),
        (lambda: sys.exit(3), "SystemExit"),
        (interrupting, "KeyboardInterrupt"),
        (raising(InputError("there is no file")), "there is no file"),
    ],
)
def test_whatever_is_raised_results_in_zeros(compute: Callable[[], object], detail: str) -> None:
    usable = usable_values(BOTH, compute)

    assert lists(usable) == {"x": [0.0, 0.0], "n": [0]}
    assert usable.zeros == Zeros(Unusable.FAILED, detail)


def test_what_happened_is_not_shown() -> None:
    assert repr(found(VISITS, {"visits": [27, 3]})) == repr(found(VISITS, None)) == "UsableValues()"


@pytest.mark.parametrize("bare", ["x", "n", "all"])
def test_sums_in_which_a_part_has_no_noise_are_refused(bare: str) -> None:
    """Zeros that hide nothing would only make an exact total wrong."""
    names = {"x", "n"} if bare == "all" else {bare}
    parts = (part("x", 2, L2(1.0), noise="x" not in names), part("n", 1, Count(10), noise="n" not in names))
    spec = SumSpec(parts=parts, promise=None if bare == "all" else PROMISE)
    calls: list[int] = []

    with pytest.raises(SpecError, match="a part of this sum has no noise"):
        usable_values(spec, lambda: calls.append(1))
    with pytest.raises(SpecError, match="a part of this sum has no noise"):
        zero_values(spec)
    assert calls == []


ARRAYS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.lists(st.floats(), max_size=3),
    st.lists(st.integers(-(2**70), 2**70), max_size=3),
    st.lists(st.booleans(), min_size=1, max_size=2),
    st.lists(st.text(), max_size=2),
)


@given(st.one_of(ARRAYS, st.dictionaries(st.sampled_from(["x", "n", "h"]), ARRAYS)))
def test_whatever_comes_can_be_encoded(values: object) -> None:
    spec = private(part("x", 2, LInf(1.0)), part("n", 1, Count(10)), part("h", 2, Count(3, total=4)))
    usable = found(spec, values)

    encoded = Encoding(spec, cohort=3).encode(usable.values, KeyStream(bytes(32)))

    assert len(encoded.residues) == 4

"""The one call: examples, drop-outs, clipping, and errors a user can act on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secagg
from secagg.errors import InputError, ParameterError, SpecError, TooFewClients
from secagg.one_call_sum import SecureSum, sum_securely
from secagg.session_params import SessionParams
from secagg.sum_spec import L2, Count, LInf, Residue
from secagg.trust_levels import Trust
from tests.secagg.flat_params import with_params

BOTH = pytest.mark.parametrize("trust", ["curious_server", "malicious_server"])


def add(vectors: Any, **changes: Any) -> SecureSum:
    settings: dict[str, Any] = {
        "bound": LInf(10.0),
        "bits": 32,
        "trust": Trust.CURIOUS,
        "corrupt": 0,
    }
    return sum_securely(vectors, **with_params({**settings, **changes}))


@BOTH
def test_vectors_are_summed(trust: Trust) -> None:
    result = secagg.sum_securely(
        [[1.0, -2.0], [0.5, 0.25], [3.0, 4.0]],
        bound=L2(10.0),
        bits=40,
        params=SessionParams(trust=trust, corrupt=0),
    )
    assert result.values == pytest.approx([4.5, 2.25], abs=1e-8)
    assert result.count == 3
    assert result.clipped == {}


@BOTH
def test_counts_are_exact(trust: str) -> None:
    votes = {7: [1, 0, 0], 11: [1, 1, 0], 1 << 31: [0, 1, 0], 0: [1, 1, 1]}
    result = add(votes, bound=Count(1), bits=3, trust=trust, corrupt=1)
    assert result.values.dtype == np.uint64
    assert result.values.tolist() == [3, 3, 1]


@BOTH
def test_clients_may_vanish(trust: str) -> None:
    vectors = {k: [1 << k] for k in range(6)}
    result = add(vectors, bound=Residue(), bits=6, trust=trust, missing={2, 5})
    assert result.values.tolist() == [0b011011]
    assert result.count == 4


@BOTH
def test_too_few_clients_are_no_sum(trust: str) -> None:
    assert add([[1.0]] * 5, trust=trust, missing=[3, 4]).count == 3
    with pytest.raises(TooFewClients, match="only 2 clients sent inputs; 3 are needed"):
        add([[1.0]] * 5, trust=trust, missing=[1, 3, 4])


def test_clipping_is_reported_for_each_client() -> None:
    result = add({3: [3.0, 4.0], 5: [0.3, 0.4], 9: [0.0, -8.0]}, bound=L2(1.0))
    assert result.clipped == {3: pytest.approx(0.2), 9: pytest.approx(0.125)}
    assert result.values == pytest.approx([0.9, 0.2], abs=1e-6)


def test_a_missing_client_is_not_reported_as_clipped() -> None:
    result = add([[9.0], [0.0], [5.0]], bound=LInf(1.0), missing=[0])
    assert result.clipped == {2: pytest.approx(0.2)}


@given(
    st.integers(1, 64),
    st.integers(2, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, (1 << 64) - 1), min_size=2, max_size=2), min_size=n, max_size=n
        )
    ),
    st.sampled_from(list(Trust)),
)
@settings(deadline=None, max_examples=25)
def test_the_sum_is_exact_for_every_ring(bits: int, numbers: list[list[int]], trust: Trust) -> None:
    vectors = [np.array([value % (1 << bits) for value in row], np.uint64) for row in numbers]
    result = add(vectors, bound=Residue(), bits=bits, trust=trust)
    columns = zip(*vectors, strict=True)
    assert result.values.tolist() == [sum(map(int, column)) % (1 << bits) for column in columns]


def test_rows_of_a_matrix_are_vectors() -> None:
    assert add(np.eye(3)).values == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectors", [[], [[1.0]], {}, {4: [1.0]}])
def test_a_sum_needs_two(vectors: Any) -> None:
    with pytest.raises(InputError, match="at least two vectors"):
        add(vectors)


@pytest.mark.parametrize("vectors", [[1.0, 2.0], [[[1.0]], [[2.0]]]])
def test_a_vector_has_one_dimension(vectors: Any) -> None:
    with pytest.raises(InputError, match=r"vectors must have one dimension .*, not shape \("):
        add(vectors)


def test_vectors_have_one_length() -> None:
    with pytest.raises(InputError, match=r"needs shape \(2,\), not \(3,\)"):
        add([[1.0, 2.0], [1.0, 2.0, 3.0]])


def test_a_vector_has_no_rows_of_different_lengths() -> None:
    with pytest.raises(InputError):
        add([[[1.0], [1.0, 2.0]], [1.0, 2.0]])


def test_a_vector_is_not_empty() -> None:
    with pytest.raises(InputError):
        add([[], []])


def test_an_error_names_the_client() -> None:
    with pytest.raises(InputError, match="client 7"):
        add({3: [1.0], 7: [np.nan], 9: [2.0]})


def test_only_clients_can_be_missing() -> None:
    with pytest.raises(InputError):
        add({3: [1.0], 7: [2.0], 9: [3.0]}, missing=[8])


def test_ids_are_numbers() -> None:
    with pytest.raises(ParameterError):
        add({"alice": [1.0], "bob": [2.0]})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_are_finite(value: float) -> None:
    with pytest.raises(InputError, match="NaN or infinity"):
        add([[1.0], [value], [2.0]])


def test_a_total_that_could_wrap_raises_before_anything_is_summed() -> None:
    with pytest.raises(SpecError, match="has 3 bits, but 4 clients need 4") as caught:
        add([[0.0]] * 4, bits=3)
    assert caught.value.bits_needed == 4
    assert add([[0.0]] * 4, bits=4).count == 4


@pytest.mark.parametrize("trust", ["server", "", None])
def test_trust_is_one_of_two(trust: Any) -> None:
    with pytest.raises(ParameterError, match="trust must be one of curious_server, malicious_server"):
        add([[1.0], [2.0]], trust=trust)


@pytest.mark.parametrize("corrupt", [-1, 2, 3])
def test_two_honest_clients_must_be_left(corrupt: int) -> None:
    with pytest.raises(ParameterError):
        add([[1.0], [2.0], [3.0]], corrupt=corrupt)
    assert add([[1.0], [2.0], [3.0]], corrupt=1).count == 3


@pytest.mark.parametrize("member", [-1, 1 << 32])
@BOTH
def test_ids_have_32_bits(member: int, trust: str) -> None:
    with pytest.raises(ParameterError, match="id"):
        add({0: [1.0], member: [2.0]}, trust=trust)


def test_a_session_has_room_for_only_so_many() -> None:
    with pytest.raises(InputError, match="under malicious_server a session takes at most 1024 vectors"):
        add([[1.0]] * 1025, trust="malicious_server")


@pytest.mark.slow
def test_more_than_a_complete_graph_holds_meet_on_a_ring() -> None:
    found = add([[1.0]] * 1100, bits=40, trust="curious_server", corrupt=50, missing=range(50))
    assert found.count == 1050
    assert found.values == pytest.approx([1050.0])


def test_missing_is_a_collection() -> None:
    with pytest.raises(InputError, match="must be a collection"):
        add([[1.0], [2.0], [3.0]], missing=1)

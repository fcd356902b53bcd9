"""Secret sharing: enough shares give the secret, fewer give nothing, and wrong ones are found."""

from __future__ import annotations

import random
from io import BytesIO
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import shamir
from secagg.insecure_seeds import SeededRandom
from secagg.shamir import PRIME, SECRET_BYTES, SHARE_BYTES, interpolate, lagrange_weights

SECRETS = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.sampled_from([bytes(32), b"\xff" * 32, bytes(31) + b"\1", b"\1" + bytes(31)]),
)


def shares_of(secret: bytes, threshold: int, holders: int, seed: bytes = b"deal") -> dict[int, int]:
    values = shamir.deal(secret, threshold=threshold, holders=holders, random=SeededRandom(seed))
    return dict(enumerate(values, start=1))


def from_points(shares: dict[int, int], points: tuple[int, ...]) -> bytes | None:
    return interpolate(lagrange_weights(points), [shares[x] for x in points])


# --- dealing and reconstructing --------------------------------------------------------------------


def test_the_prime_is_the_smallest_above_two_to_the_256() -> None:
    """Miller and Rabin with forty bases on the prime; every number before it fails one."""

    def probably_prime(n: int) -> bool:
        twos = (n - 1 & 1 - n).bit_length() - 1
        for base in range(2, 42):
            x = pow(base, n >> twos, n)
            if x in (1, n - 1):
                continue
            if not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
                return False
        return True

    assert PRIME == (1 << 256) + 297
    assert probably_prime(PRIME)
    assert not any(probably_prime(n) for n in range((1 << 256) + 1, PRIME, 2))


@given(SECRETS, st.data())
@settings(deadline=None, max_examples=60)
def test_any_threshold_of_shares_reconstructs(secret: bytes, data: st.DataObject) -> None:
    holders = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, holders))
    shares = shares_of(secret, threshold, holders, data.draw(st.binary(max_size=4)))
    points = data.draw(st.permutations(range(1, holders + 1)))[:threshold]
    assert from_points(shares, tuple(points)) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\7"])
def test_every_subset_of_five_by_three(secret: bytes) -> None:
    shares = shares_of(secret, 3, 5)
    for count in (3, 4, 5):  # more than enough is no harm
        for points in combinations(shares, count):
            assert from_points(shares, points) == secret


@given(SECRETS, SECRETS)
@settings(deadline=None, max_examples=30)
def test_fewer_than_the_threshold_say_nothing(secret: bytes, other: bytes) -> None:
    """Whatever t - 1 holders have, for every secret there is exactly one polynomial that gave it to them.

    Dealing draws polynomials uniformly, so all secrets are equally likely given these shares. The
    polynomial for the other secret is built here, and dealt by the real dealer.
    """
    threshold = 4
    seen: tuple[int, ...] = (2, 5, 7)
    shares = shares_of(secret, threshold, 7)
    points, values = (0, *seen), [int.from_bytes(other, "big"), *(shares[x] for x in seen)]
    coefficients = polynomial_through(points, values)
    assert coefficients[0] == int.from_bytes(other, "big")
    drawn = b"".join(c.to_bytes(48, "big") for c in reversed(coefficients[1:]))
    dealt = shamir.deal(other, threshold=threshold, holders=7, random=BytesIO(drawn).read)
    assert [dealt[x - 1] for x in seen] == [shares[x] for x in seen]


def polynomial_through(points: tuple[int, ...], values: list[int]) -> list[int]:
    """Coefficients, constant first, by solving the linear equations: no formula of the code under test."""
    size = len(points)
    rows = [[pow(x, k, PRIME) for k in range(size)] + [y] for x, y in zip(points, values, strict=True)]
    for i in range(size):
        pivot = next(r for r in range(i, size) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        inverse = pow(rows[i][i], -1, PRIME)
        rows[i] = [value * inverse % PRIME for value in rows[i]]
        for r in range(size):
            if r != i:
                rows[r] = [(a - rows[r][i] * b) % PRIME for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


def weights_by_definition(points: tuple[int, ...]) -> list[int]:
    """Products of x_j / (x_j - x_i), with an inversion each."""
    weights = []
    for x in points:
        weight = 1
        for other in points:
            if other != x:
                weight = weight * other * pow(other - x, -1, PRIME) % PRIME
        weights.append(weight)
    return weights


@given(st.sets(st.integers(1, 130), min_size=1, max_size=70), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_weights_are_those_of_lagrange_in_any_order(chosen: set[int], order: random.Random) -> None:
    points = tuple(order.sample(sorted(chosen), len(chosen)))
    assert lagrange_weights(points) == weights_by_definition(points)


@pytest.mark.parametrize("points", [(1,), (130,), (999,), (1, 999), (3, 1, 2), tuple(range(2, 400, 7))])
def test_weights_of_uncommon_sets_of_holders(points: tuple[int, ...]) -> None:
    assert lagrange_weights(points) == weights_by_definition(points)


@pytest.mark.parametrize("threshold", [1, 2, 63, 64, 65, 128, 130])
def test_shares_lie_on_the_polynomial_that_was_drawn(threshold: int) -> None:
    """Of any degree, far more than the first few terms."""
    drawn = SeededRandom(b"polynomial")(48 * (threshold - 1))
    secret = b"\xa5" * 32
    shares = shamir.deal(secret, threshold=threshold, holders=140, random=BytesIO(drawn).read)
    terms = [int.from_bytes(drawn[at : at + 48], "big") for at in range(0, len(drawn), 48)]
    terms.append(int.from_bytes(secret, "big"))
    for x in (1, 2, 77, 140):
        expected = sum(term * pow(x, power, PRIME) for power, term in enumerate(reversed(terms)))
        assert shares[x - 1] == expected % PRIME


def test_every_coefficient_is_drawn_from_384_random_bits() -> None:
    """Fewer would prefer some field elements, and shares would say something about the secret."""
    pool = BytesIO(b"\xff" * 48 + b"\xfe" * 48 + b"rest")
    shares = shamir.deal(bytes(32), threshold=3, holders=4, random=pool.read)
    assert pool.read() == b"rest"
    square, line = (int.from_bytes(bytes([byte] * 48), "big") for byte in (0xFF, 0xFE))
    assert shares == [(square * x * x + line * x) % PRIME for x in (1, 2, 3, 4)]


def test_two_dealings_of_one_secret_share_nothing() -> None:
    one, other = shares_of(bytes(32), 3, 5, b"one"), shares_of(bytes(32), 3, 5, b"other")
    assert set(one.values()).isdisjoint(other.values())


@pytest.mark.parametrize(
    ("size", "threshold", "holders"), [(31, 2, 3), (33, 2, 3), (32, 0, 3), (32, -1, 3), (32, 4, 3)]
)
def test_only_sensible_dealings(size: int, threshold: int, holders: int) -> None:
    with pytest.raises(ValueError, match="1 <= threshold <= holders"):
        shamir.deal(bytes(size), threshold=threshold, holders=holders, random=bytes)


def test_a_constant_beyond_32_bytes_is_no_secret() -> None:
    """297 field elements are no 32-byte strings; only a corrupt dealer shares one."""
    for constant in (1 << 256, PRIME - 1):
        assert interpolate([1], [constant]) is None
    assert interpolate([1], [(1 << 256) - 1]) == b"\xff" * 32


# --- shares as bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 1, (1 << 256) - 1, 1 << 256, PRIME - 1])
def test_a_share_survives_the_wire(share: int) -> None:
    data = shamir.shares_to_bytes([share])
    assert len(data) == SHARE_BYTES == SECRET_BYTES + 1
    assert shamir.shares_from_bytes(data) == [share]


@pytest.mark.parametrize("value", [PRIME, PRIME + 1, (1 << 264) - 1])
def test_a_share_has_one_encoding(value: int) -> None:
    assert shamir.shares_from_bytes(value.to_bytes(SHARE_BYTES, "big")) is None


@pytest.mark.parametrize("data", [bytes(32), bytes(34), bytes(65)])
def test_a_share_has_33_bytes(data: bytes) -> None:
    assert shamir.shares_from_bytes(data) is None


@given(st.lists(st.one_of(st.integers(0, PRIME - 1), st.sampled_from([0, PRIME - 1])), max_size=9))
@settings(deadline=None)
def test_a_row_of_shares_survives_the_wire(shares: list[int]) -> None:
    data = shamir.shares_to_bytes(shares)
    assert data == b"".join(share.to_bytes(SHARE_BYTES, "big") for share in shares)
    assert shamir.shares_from_bytes(data) == shares


@pytest.mark.parametrize("value", [PRIME, (1 << 264) - 1])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_one_value_outside_the_field_spoils_a_row(value: int, place: int) -> None:
    row = [0, 5, PRIME - 1, 1, 7]
    row[place] = value
    data = shamir.shares_to_bytes(row)
    assert shamir.shares_from_bytes(data) is None


@pytest.mark.parametrize("length", [1, SHARE_BYTES - 1, SHARE_BYTES + 1, 3 * SHARE_BYTES - 1])
def test_a_row_holds_whole_shares(length: int) -> None:
    assert shamir.shares_from_bytes(bytes(length)) is None

"""The vault: secrets of one sum leave once, and those of earlier sums are gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from secagg import shamir
from secagg.errors import SecretReused
from secagg.insecure_seeds import SeededRandom
from secagg.keys import noise_commitment, public_key, seed_commitment
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_envelopes import shares_bytes

SUMS = 3


def vault(owner: int = 5) -> Vault:
    return Vault(owner=owner, sums=SUMS, random=SeededRandom(b"vault", bytes([owner])))


def plaintext(dealer: int) -> bytes:
    """Recognisable shares: (dealer, sum, kind)."""
    return b"".join(bytes([dealer, k, kind]) * 11 for k in range(SUMS) for kind in (0, 1))


def full_vault() -> Vault:
    one = vault()
    for dealer in range(4):
        one.hold(dealer, plaintext(dealer))
    return one


def share(dealer: int, sum_index: int, kind: int) -> bytes:
    return bytes([dealer, sum_index, kind]) * 11


def test_what_is_published_belongs_to_the_secrets() -> None:
    one = vault()
    keys, commitments = one.mask_public_keys(), one.commitments()
    assert one.channel_key() == public_key(one._channel)
    assert len(keys) == len(commitments) == SUMS
    for k in range(SUMS):
        mask_key, self_mask = one.take_mask_secrets(k)
        assert public_key(mask_key) == keys[k]
        assert seed_commitment(self_mask, owner=5, sum_index=k) == commitments[k]


def test_all_secrets_are_different() -> None:
    one = vault()
    secrets = [one._channel]
    for k in range(SUMS):
        secrets += one.take_mask_secrets(k)
    assert len(set(secrets)) == 1 + 2 * SUMS
    assert {len(secret) for secret in secrets} == {32}


def test_dealt_shares_open_each_secret_of_each_sum() -> None:
    one = vault()
    texts = one.deal(threshold=3, holders=5)
    assert {len(text) for text in texts} == {SUMS * shares_bytes(0)}
    for k in range(SUMS):
        mask_key, self_mask = one.take_mask_secrets(k)
        for kind, secret in enumerate((self_mask, mask_key)):
            at = (2 * k + kind) * SHARE_BYTES
            values = shamir.shares_from_bytes(b"".join(text[at : at + SHARE_BYTES] for text in texts))
            assert values is not None
            shares = dict(enumerate(values, start=1))
            assert shamir.correct_errors(shares, 3) == (secret, set())


def test_secrets_are_dealt_one_after_the_other() -> None:
    """Each from randomness of its own: sum by sum, the self mask before the mask key."""
    one, random = vault(), SeededRandom(b"vault", bytes([5]))
    random(32 * (1 + 2 * SUMS))  # the secrets themselves
    texts = one.deal(threshold=2, holders=3)
    rows = [b""] * 3
    for k in range(SUMS):
        for secret in reversed(one.take_mask_secrets(k)):
            shares = shamir.deal(secret, threshold=2, holders=3, random=random)
            rows = [row + shamir.shares_to_bytes([share]) for row, share in zip(rows, shares, strict=True)]
    assert texts == rows


def test_mask_secrets_leave_once() -> None:
    one = vault()
    one.take_mask_secrets(1)
    with pytest.raises(SecretReused, match="the masks of this sum were used or erased"):
        one.take_mask_secrets(1)
    one.take_mask_secrets(2)
    with pytest.raises(SecretReused):
        one.take_mask_secrets(SUMS)


def test_one_kind_of_share_for_every_member_of_the_roster() -> None:
    """Of the self mask for who survived, of the mask key for who did not; nothing for strangers."""
    shares = full_vault().take_shares(1, roster=(0, 2, 3), survivors=frozenset({0, 3}))
    assert shares == {0: share(0, 1, 0), 2: share(2, 1, 1), 3: share(3, 1, 0)}
    assert list(shares) == [0, 2, 3]


def test_a_share_we_never_got_is_left_out() -> None:
    one = vault()
    one.hold(2, plaintext(2))
    assert one.take_shares(0, roster=(0, 2), survivors=frozenset({0, 2})) == {2: share(2, 0, 0)}


def test_shares_leave_once_whatever_is_asked_for() -> None:
    one = full_vault()
    one.take_shares(1, roster=(0,), survivors=frozenset({0}))
    for roster, survivors in (((0,), frozenset[int]()), ((2, 3), frozenset({2}))):
        with pytest.raises(SecretReused, match="the shares of this sum were released or erased"):
            one.take_shares(1, roster=roster, survivors=survivors)
    assert one.take_shares(2, roster=(0,), survivors=frozenset()) == {0: share(0, 2, 1)}


def test_earlier_sums_are_erased_used_or_skipped() -> None:
    one = full_vault()
    one.erase_before(2)
    for k in range(2):
        with pytest.raises(SecretReused):
            one.take_mask_secrets(k)
        with pytest.raises(SecretReused):
            one.take_shares(k, roster=(0,), survivors=frozenset())
    one.take_mask_secrets(2)
    assert one.take_shares(2, roster=(1,), survivors=frozenset({1})) == {1: share(1, 2, 0)}
    one.erase_before(2)  # once more is no harm


def test_everything_can_be_erased() -> None:
    one = full_vault()
    one.erase()
    for k in range(SUMS):
        with pytest.raises(SecretReused):
            one.take_mask_secrets(k)
        with pytest.raises(SecretReused):
            one.take_shares(k, roster=(0,), survivors=frozenset())
    with pytest.raises(SecretReused, match="the channel key was erased"):
        one.channel(b"s" * 32)


def test_the_channel_is_forgotten_apart_from_the_rest() -> None:
    one = full_vault()
    one.forget_channel()
    with pytest.raises(SecretReused, match="the channel key was erased"):
        one.channel(b"s" * 32)
    one.take_mask_secrets(0)
    assert one.take_shares(0, roster=(0,), survivors=frozenset()) == {0: share(0, 0, 1)}


def test_the_channel_is_that_of_the_published_key() -> None:
    one, other = vault(5), vault(6)
    sealed = one.channel(b"s" * 32).seal(b"text", receiver=6, receiver_key=other.channel_key())
    assert other.channel(b"s" * 32).open(sealed, sender=5, sender_key=one.channel_key()) == b"text"


def test_the_channel_is_kept_until_it_is_forgotten() -> None:
    """It remembers the points it shares with others, so it has to go with the key."""
    for forget in (Vault.forget_channel, Vault.erase):
        one = full_vault()
        first = one.channel(b"s" * 32)
        assert one.channel(b"s" * 32) is first
        assert one.channel(b"t" * 32) is not first
        forget(one)
        assert not one._channels


def test_shares_that_arrive_after_erasing_are_not_kept() -> None:
    one = full_vault()
    one.erase()
    one.hold(0, plaintext(0))
    with pytest.raises(SecretReused):
        one.take_shares(0, roster=(0,), survivors=frozenset())


# --- removable noise -------------------------------------------------------------------------------

SEEDS = 2


def noisy_vault() -> Vault:
    return Vault(owner=5, sums=SUMS, random=SeededRandom(b"vault", bytes([5])), seeds=SEEDS)


def noisy_plaintext(dealer: int) -> bytes:
    return b"".join(share(dealer, k, kind) for k in range(SUMS) for kind in range(2 + SEEDS))


def full_noisy_vault() -> Vault:
    one = noisy_vault()
    for dealer in range(4):
        one.hold(dealer, noisy_plaintext(dealer))
    return one


def test_commitments_to_noise_follow_those_to_masks_sum_by_sum() -> None:
    one = noisy_vault()
    seeds = [one.noise_seeds(k) for k in range(SUMS)]
    assert len({seed for row in seeds for seed in row}) == SUMS * SEEDS
    masks = [seed_commitment(one._self_masks[k], owner=5, sum_index=k) for k in range(SUMS)]
    noise = [
        noise_commitment(seeds[k][layer - 1], owner=5, sum_index=k, layer=layer)
        for k in range(SUMS)
        for layer in (1, 2)
    ]
    assert one.commitments() == (*masks, *noise)


def test_shares_of_seeds_are_dealt_after_those_of_masks() -> None:
    one = noisy_vault()
    texts = one.deal(threshold=3, holders=5)
    assert {len(text) for text in texts} == {SUMS * shares_bytes(SEEDS)}
    for k in range(SUMS):
        for layer, seed in enumerate(one.noise_seeds(k), start=1):
            at = ((2 + SEEDS) * k + 1 + layer) * SHARE_BYTES
            values = shamir.shares_from_bytes(b"".join(text[at : at + SHARE_BYTES] for text in texts))
            assert values is not None
            shares = dict(enumerate(values, start=1))
            assert shamir.correct_errors(shares, 3) == (seed, set())


def test_seeds_are_there_until_the_masks_are_taken() -> None:
    """An answer that failed before anything was masked may be tried again."""
    one = noisy_vault()
    assert one.noise_seeds(1) == one.noise_seeds(1)
    one.take_mask_secrets(1)
    for k in (1, SUMS):
        with pytest.raises(SecretReused, match="the noise of this sum was used or erased"):
            one.noise_seeds(k)
    assert len(one.noise_seeds(2)) == SEEDS


@pytest.mark.parametrize("erase", [lambda one: one.erase_before(2), Vault.erase], ids=["before", "all"])
def test_seeds_are_erased_with_everything_else(erase: Callable[[Vault], None]) -> None:
    one = noisy_vault()
    erase(one)
    for k in range(2):
        with pytest.raises(SecretReused):
            one.noise_seeds(k)
    assert (2 in one._noise) == (erase is not Vault.erase)


@pytest.mark.parametrize("surplus", [(), (1,), (2,), (1, 2)])
def test_shares_of_surplus_noise_follow_a_survivors_own(surplus: tuple[int, ...]) -> None:
    """And nobody else's: who dropped out added no noise to the total."""
    shares = full_noisy_vault().take_shares(1, roster=(0, 2, 3), survivors=frozenset({0, 3}), surplus=surplus)
    assert shares == {
        0: b"".join(share(0, 1, kind) for kind in (0, *(1 + layer for layer in surplus))),
        2: share(2, 1, 1),
        3: b"".join(share(3, 1, kind) for kind in (0, *(1 + layer for layer in surplus))),
    }


def test_shares_of_noise_leave_once_with_those_of_masks() -> None:
    one = full_noisy_vault()
    one.take_shares(1, roster=(0,), survivors=frozenset({0}))
    with pytest.raises(SecretReused, match="the shares of this sum were released or erased"):
        one.take_shares(1, roster=(0,), survivors=frozenset({0}), surplus=(1,))

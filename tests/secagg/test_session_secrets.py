"""The vault: secrets of one sum leave once, and those of earlier sums are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from secagg import shamir
from secagg.errors import SecretReused
from secagg.hybrid_keys import (
    CIPHERTEXT_BYTES,
    DEPOSIT_BYTES,
    KEM_KEY_BYTES,
    PAIR_SECRET_BYTES,
    Encapsulation,
    KeyAgreement,
    mask_key_of,
    padded,
    secret_tag,
)
from secagg.insecure_seeds import SeededRandom
from secagg.keys import noise_commitment, public_key, seed_commitment
from secagg.message_records import Advert
from secagg.session_secrets import MaskSecrets, Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_envelopes import shares_bytes
from secagg.share_tags import RevealedRow

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


def hashes(dealer: int, row: bytes) -> Sequence[bytes]:
    """Recognisable hashes of the shares of a row."""
    return [_hash(dealer, row[at + 1], row[at + 2]) for at in range(0, len(row), SHARE_BYTES)]


def _hash(dealer: int, sum_index: int, kind: int) -> bytes:
    return bytes([dealer, sum_index, kind, 9]) * 4


def revealed(dealer: int, sum_index: int, kinds: Sequence[int], *, columns: int = 2) -> RevealedRow:
    """The shares of some kinds in a row, and the hashes of the others."""
    hidden = (_hash(dealer, sum_index, kind) for kind in range(columns) if kind not in kinds)
    return RevealedRow(b"".join(share(dealer, sum_index, kind) for kind in kinds), b"".join(hidden))


def advert(one: Vault) -> Advert:
    return Advert(one._owner, one.channel_key(), one.kem_key(), (), ())


def opened(texts: Sequence[bytes], place: int) -> bytes | None:
    """The secret that any three of the dealt shares at `place` in the texts open."""
    values = shamir.shares_from_bytes(b"".join(text[place * SHARE_BYTES :][:SHARE_BYTES] for text in texts))
    assert values is not None
    found = {
        shamir.interpolate(shamir.lagrange_weights(points), [values[x - 1] for x in points])
        for points in combinations(range(1, len(texts) + 1), 3)
    }
    (secret,) = found
    return secret


def both(secrets: MaskSecrets) -> tuple[bytes, bytes]:
    return secrets.mask_key, secrets.self_mask


def test_what_is_published_belongs_to_the_secrets() -> None:
    one = vault()
    keys, commitments = one.mask_public_keys(), one.commitments()
    assert one.channel_key() == public_key(one._channel)
    assert len(keys) == len(commitments) == SUMS
    for k in range(SUMS):
        mask_key, self_mask = both(one.take_mask_secrets(k))
        assert public_key(mask_key) == keys[k]
        assert seed_commitment(self_mask, owner=5, sum_index=k) == commitments[k]


def test_all_secrets_are_different() -> None:
    one = vault()
    secrets = [one._channel]
    for k in range(SUMS):
        secrets += both(one.take_mask_secrets(k))
    assert len(set(secrets)) == 1 + 2 * SUMS
    assert {len(secret) for secret in secrets} == {32}


def test_dealt_shares_open_each_secret_of_each_sum() -> None:
    one = vault()
    texts = one.deal(threshold=3, holders=5)
    assert {len(text) for text in texts} == {SUMS * shares_bytes(0)}
    for k in range(SUMS):
        mask_key, self_mask = both(one.take_mask_secrets(k))
        for kind, secret in enumerate((self_mask, mask_key)):
            assert opened(texts, 2 * k + kind) == secret


def test_secrets_are_dealt_one_after_the_other() -> None:
    """Each from randomness of its own: sum by sum, the self mask before the mask key."""
    one, random = vault(), SeededRandom(b"vault", bytes([5]))
    random(32 * (1 + 2 * SUMS))  # the secrets themselves
    texts = one.deal(threshold=2, holders=3)
    rows = [b""] * 3
    for k in range(SUMS):
        for secret in reversed(both(one.take_mask_secrets(k))):
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
    shares = full_vault().take_shares(1, roster=(0, 2, 3), survivors=frozenset({0, 3}), hashes=hashes)
    assert shares == {0: revealed(0, 1, [0]), 2: revealed(2, 1, [1]), 3: revealed(3, 1, [0])}
    assert list(shares) == [0, 2, 3]


def test_a_share_we_never_got_is_left_out() -> None:
    one = vault()
    one.hold(2, plaintext(2))
    assert one.take_shares(0, roster=(0, 2), survivors=frozenset({0, 2}), hashes=hashes) == {
        2: revealed(2, 0, [0])
    }


def test_shares_leave_once_whatever_is_asked_for() -> None:
    one = full_vault()
    one.take_shares(1, roster=(0,), survivors=frozenset({0}), hashes=hashes)
    for roster, survivors in (((0,), frozenset[int]()), ((2, 3), frozenset({2}))):
        with pytest.raises(SecretReused, match="the shares of this sum were released or erased"):
            one.take_shares(1, roster=roster, survivors=survivors, hashes=hashes)
    assert one.take_shares(2, roster=(0,), survivors=frozenset(), hashes=hashes) == {0: revealed(0, 2, [1])}


def test_earlier_sums_are_erased_used_or_skipped() -> None:
    one = full_vault()
    one.erase_before(2)
    for k in range(2):
        with pytest.raises(SecretReused):
            one.take_mask_secrets(k)
        with pytest.raises(SecretReused):
            one.take_shares(k, roster=(0,), survivors=frozenset(), hashes=hashes)
    one.take_mask_secrets(2)
    assert one.take_shares(2, roster=(1,), survivors=frozenset({1}), hashes=hashes) == {
        1: revealed(1, 2, [0])
    }
    one.erase_before(2)  # once more is no harm


def test_everything_can_be_erased() -> None:
    one = full_vault()
    one.erase()
    for k in range(SUMS):
        with pytest.raises(SecretReused):
            one.take_mask_secrets(k)
        with pytest.raises(SecretReused):
            one.take_shares(k, roster=(0,), survivors=frozenset(), hashes=hashes)
    with pytest.raises(SecretReused, match="the channel key was erased"):
        one.channel(b"s" * 32)


def test_the_channel_is_forgotten_apart_from_the_rest() -> None:
    one = full_vault()
    one.forget_channel()
    with pytest.raises(SecretReused, match="the channel key was erased"):
        one.channel(b"s" * 32)
    one.take_mask_secrets(0)
    assert one.take_shares(0, roster=(0,), survivors=frozenset(), hashes=hashes) == {0: revealed(0, 0, [1])}


def test_the_channel_is_that_of_the_published_key() -> None:
    one, other = vault(5), vault(6)
    sealed = one.channel(b"s" * 32).seal(b"text", receiver=advert(other))
    assert other.channel(b"s" * 32).open(sealed, sender=advert(one)) == b"text"


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
        one.take_shares(0, roster=(0,), survivors=frozenset(), hashes=hashes)


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
            assert opened(texts, (2 + SEEDS) * k + 1 + layer) == seed


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
    shares = full_noisy_vault().take_shares(
        1, roster=(0, 2, 3), survivors=frozenset({0, 3}), surplus=surplus, hashes=hashes
    )
    kinds, columns = (0, *(1 + layer for layer in surplus)), 2 + SEEDS
    assert shares == {
        0: revealed(0, 1, kinds, columns=columns),
        2: revealed(2, 1, [1], columns=columns),
        3: revealed(3, 1, kinds, columns=columns),
    }


def test_shares_of_noise_leave_once_with_those_of_masks() -> None:
    one = full_noisy_vault()
    one.take_shares(1, roster=(0,), survivors=frozenset({0}), hashes=hashes)
    with pytest.raises(SecretReused, match="the shares of this sum were released or erased"):
        one.take_shares(1, roster=(0,), survivors=frozenset({0}), surplus=(1,), hashes=hashes)


# --- hybrid key agreement --------------------------------------------------------------------------

SESSION = b"s" * 32


def hybrid_vault(owner: int) -> Vault:
    random = SeededRandom(b"hybrid vault", bytes([owner]))
    return Vault(owner=owner, sums=SUMS, random=random, agreement=KeyAgreement.HYBRID)


def exchanged(*owners: int) -> list[Vault]:
    """Vaults of which each has opened an envelope of every other."""
    vaults = [hybrid_vault(owner) for owner in owners]
    adverts = [advert(one) for one in vaults]
    for one, own in zip(vaults, adverts, strict=True):
        for other, peer in zip(vaults, adverts, strict=True):
            if one is not other:
                sealed = one.channel(SESSION).seal(b"text", receiver=peer)
                assert other.channel(SESSION).open(sealed, sender=own) == b"text"
    return vaults


def test_only_a_hybrid_vault_has_a_kem_key() -> None:
    assert vault().kem_key() == b""
    assert len(hybrid_vault(5).kem_key()) == KEM_KEY_BYTES
    assert hybrid_vault(5).kem_key() != hybrid_vault(6).kem_key()
    sealed = exchanged(5, 6)[0].channel(SESSION).seal(b"text", receiver=advert(hybrid_vault(6)))
    assert len(sealed) == CIPHERTEXT_BYTES + len(b"text") + 16


def test_the_mask_key_is_derived_from_the_dealt_secret() -> None:
    """The dealt secret opens deposits too, so it is not the mask key itself."""
    one = hybrid_vault(5)
    keys, dealt = one.mask_public_keys(), dict(one._mask_keys)
    texts = one.deal(threshold=3, holders=4)
    for k in range(SUMS):
        mask_key = one.take_mask_secrets(k).mask_key
        assert mask_key == mask_key_of(dealt[k], KeyAgreement.HYBRID) != dealt[k]
        assert public_key(mask_key) == keys[k]
        assert opened(texts, 2 * k + 1) == dealt[k]


def test_both_ends_of_a_pair_store_the_same_secrets() -> None:
    one, other = exchanged(5, 6)
    one.deposits(SESSION, {0: 5, 1: 6})
    other.deposits(SESSION, {0: 5, 1: 6})
    found = [
        (one.take_mask_secrets(k).pair_secrets, other.take_mask_secrets(k).pair_secrets) for k in range(SUMS)
    ]
    assert all(ours == {1: theirs[0]} and list(theirs) == [0] for ours, theirs in found)
    assert len({ours[1] for ours, _ in found}) == SUMS


def test_a_deposit_opens_with_the_dealt_secret_of_its_sum() -> None:
    one, _, __ = exchanged(5, 6, 7)
    found = one.deposits(SESSION, {1: 6, 2: 7})
    assert {place: len(each) for place, each in found.items()} == dict.fromkeys((1, 2), SUMS * DEPOSIT_BYTES)
    for place, peer in ((1, 6), (2, 7)):
        for k in range(SUMS):
            deposit = found[place][k * DEPOSIT_BYTES : (k + 1) * DEPOSIT_BYTES]
            hidden, tag = deposit[:PAIR_SECRET_BYTES], deposit[PAIR_SECRET_BYTES:]
            secret = one._pair_secrets[k][place]
            names = {"owner": 5, "peer": peer, "sum_index": k}
            found_secret = padded(hidden, secret=one._mask_keys[k], session=SESSION, **names)
            assert found_secret == secret != hidden
            assert tag == secret_tag(secret, session=SESSION, pair=(5, peer), sum_index=k)


def test_there_is_no_deposit_for_a_peer_whose_envelope_did_not_open() -> None:
    one, _ = exchanged(5, 6)
    stranger = advert(hybrid_vault(7))
    channel = one.channel(SESSION)
    channel.seal(b"text", receiver=stranger)
    assert channel.open(bytes(CIPHERTEXT_BYTES + 20), sender=stranger) is None
    assert list(one.deposits(SESSION, {0: 5, 1: 6, 2: 7})) == [1]
    assert set(one.take_mask_secrets(0).pair_secrets) == {1}


@pytest.mark.parametrize("erase", [lambda one: one.erase_before(2), Vault.erase], ids=["before", "all"])
def test_pair_secrets_are_erased_with_everything_else(erase: Callable[[Vault], None]) -> None:
    one, _ = exchanged(5, 6)
    one.deposits(SESSION, {1: 6})
    erase(one)
    assert set(one._pair_secrets) == ({2} if erase is not Vault.erase else set())


@pytest.mark.parametrize("forget", [Vault.forget_channel, Vault.erase])
def test_the_kem_key_goes_with_the_channel(forget: Callable[[Vault], None]) -> None:
    one, _ = exchanged(5, 6)
    forget(one)
    assert one._kem is None
    assert one.kem_key() == b""
    with pytest.raises(SecretReused, match="the channel key was erased"):
        one.deposits(SESSION, {1: 6})


def test_another_encapsulation_may_be_used() -> None:
    """For test vectors, which must not depend on chance."""
    calls: list[bytes] = []

    def fixed(public: bytes) -> Encapsulation:
        calls.append(public)
        return Encapsulation(bytes(32), bytes(CIPHERTEXT_BYTES))

    random = SeededRandom(b"fixed")
    one = Vault(owner=5, sums=1, random=random, agreement=KeyAgreement.HYBRID, encapsulate=fixed)
    peer = advert(hybrid_vault(6))
    assert one.channel(SESSION).seal(b"text", receiver=peer).startswith(bytes(CIPHERTEXT_BYTES))
    assert calls == [peer.kem_key]

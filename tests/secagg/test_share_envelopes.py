"""Envelopes: they open for one receiver, from one sender, in one session, unchanged, and not otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secagg.hybrid_keys import CIPHERTEXT_BYTES, KemKey, encapsulate
from secagg.keys import public_key
from secagg.message_records import Advert
from secagg.share_envelopes import TAG_BYTES, EnvelopeCipher, envelope_bytes

SECRETS = [bytes([k + 1] * 32) for k in range(3)]
KEYS = [public_key(secret) for secret in SECRETS]
ADVERTS = [Advert(member, key, b"", (), ()) for member, key in enumerate(KEYS)]
SESSION = b"s" * 32
TEXT = bytes(range(66))


def channel(owner: int, *, session: bytes = SESSION) -> EnvelopeCipher:
    return EnvelopeCipher(SECRETS[owner], session=session, owner=owner, kem=None, encapsulate=encapsulate)


def sealed(text: bytes = TEXT) -> bytes:
    return channel(0).seal(text, receiver=ADVERTS[1])


def test_an_envelope_opens_for_its_receiver() -> None:
    assert channel(1).open(sealed(), sender=ADVERTS[0]) == TEXT


@pytest.mark.parametrize("sums", [0, 1, 3, 64])
def test_an_envelope_is_as_long_as_two_shares_per_sum_and_a_tag(sums: int) -> None:
    assert len(sealed(bytes(66 * sums))) == envelope_bytes(sums) == 66 * sums + TAG_BYTES


def test_every_changed_bit_is_noticed() -> None:
    envelope = sealed()
    for position in range(len(envelope)):
        changed = bytearray(envelope)
        changed[position] ^= 1 << position % 8
        assert channel(1).open(bytes(changed), sender=ADVERTS[0]) is None


@pytest.mark.parametrize("length", [0, 1, TAG_BYTES - 1, TAG_BYTES, 66 + TAG_BYTES - 1])
def test_an_envelope_that_is_cut_short_does_not_open(length: int) -> None:
    assert channel(1).open(sealed()[:length], sender=ADVERTS[0]) is None


def test_nobody_else_opens_it() -> None:
    envelope = sealed()
    assert channel(2).open(envelope, sender=ADVERTS[0]) is None
    assert channel(1).open(envelope, sender=ADVERTS[2]) is None
    assert (
        channel(1).open(envelope, sender=replace(ADVERTS[0], member=2)) is None
    )  # the right key, another name
    assert channel(1, session=b"t" * 32).open(envelope, sender=ADVERTS[0]) is None


def test_it_cannot_be_reflected_to_its_sender() -> None:
    """Both directions share one X25519 point; the key and the associated data tell them apart."""
    envelope = sealed()
    assert channel(0).open(envelope, sender=ADVERTS[1]) is None
    back = channel(1).seal(TEXT, receiver=ADVERTS[0])
    assert back != envelope
    assert channel(0).open(back, sender=ADVERTS[1]) == TEXT


def test_one_text_looks_different_to_every_receiver_and_session() -> None:
    envelopes = {
        channel(0, session=session).seal(TEXT, receiver=ADVERTS[receiver])
        for session in (SESSION, b"t" * 32)
        for receiver in (1, 2)
    }
    assert len(envelopes) == 4


def test_one_end_seals_and_opens_like_two_fresh_ones() -> None:
    """What it remembers of a peer from sealing is of use for opening, and changes nothing."""
    ours, theirs = channel(0), channel(1)
    there = ours.seal(TEXT, receiver=ADVERTS[1])
    back = theirs.seal(TEXT[::-1], receiver=ADVERTS[0])
    assert there == sealed()
    assert back == channel(1).seal(TEXT[::-1], receiver=ADVERTS[0])
    assert theirs.open(there, sender=ADVERTS[0]) == TEXT
    assert ours.open(back, sender=ADVERTS[1]) == TEXT[::-1]
    assert ours.open(there, sender=ADVERTS[1]) is None
    assert ours.open(back, sender=ADVERTS[2]) is None


# --- hybrid key agreement --------------------------------------------------------------------------

SEEDS = [bytes([k + 1] * 64) for k in range(3)]
HYBRID = [replace(one, kem_key=KemKey(seed).public()) for one, seed in zip(ADVERTS, SEEDS, strict=True)]


def hybrid(owner: int, *, secret: int | None = None, seed: int | None = None) -> EnvelopeCipher:
    """The channel of a client that has both of its private keys, or another client's."""
    return EnvelopeCipher(
        SECRETS[owner if secret is None else secret],
        session=SESSION,
        owner=owner,
        kem=KemKey(SEEDS[owner if seed is None else seed]),
        encapsulate=encapsulate,
    )


def test_a_hybrid_envelope_begins_with_a_ciphertext() -> None:
    ours = hybrid(0)
    envelope = ours.seal(TEXT, receiver=HYBRID[1])
    assert len(envelope) == CIPHERTEXT_BYTES + len(TEXT) + TAG_BYTES
    assert envelope.startswith(ours.sent[1].ciphertext)
    theirs = hybrid(1)
    assert theirs.open(envelope, sender=HYBRID[0]) == TEXT
    assert theirs.received == {0: ours.sent[1]}
    assert ours.received == theirs.sent == {}


def test_a_hybrid_envelope_is_new_every_time() -> None:
    assert hybrid(0).seal(TEXT, receiver=HYBRID[1]) != hybrid(0).seal(TEXT, receiver=HYBRID[1])


def test_both_private_keys_are_needed() -> None:
    envelope = hybrid(0).seal(TEXT, receiver=HYBRID[1])
    for without in (hybrid(1, secret=2), hybrid(1, seed=2)):
        assert without.open(envelope, sender=HYBRID[0]) is None
        assert without.received == {}


@pytest.mark.parametrize("position", [0, 1, 500, CIPHERTEXT_BYTES - 1, CIPHERTEXT_BYTES, -1])
def test_every_part_of_a_hybrid_envelope_counts(position: int) -> None:
    changed = bytearray(hybrid(0).seal(TEXT, receiver=HYBRID[1]))
    changed[position] ^= 1
    theirs = hybrid(1)
    assert theirs.open(bytes(changed), sender=HYBRID[0]) is None
    assert theirs.received == {}


def test_a_ciphertext_is_bound_to_its_envelope() -> None:
    """The ciphertext of another envelope of the same two clients does not open this one."""
    one, other = (hybrid(0).seal(TEXT, receiver=HYBRID[1]) for _ in range(2))
    mixed = other[:CIPHERTEXT_BYTES] + one[CIPHERTEXT_BYTES:]
    assert hybrid(1).open(mixed, sender=HYBRID[0]) is None

"""Envelopes: they open for one receiver, from one sender, in one session, unchanged, and not otherwise."""

from __future__ import annotations

import pytest

from secagg.keys import public_key
from secagg.share_envelopes import TAG_BYTES, EnvelopeCipher, envelope_bytes

SECRETS = [bytes([k + 1] * 32) for k in range(3)]
KEYS = [public_key(secret) for secret in SECRETS]
SESSION = b"s" * 32
TEXT = bytes(range(66))


def channel(owner: int, *, session: bytes = SESSION) -> EnvelopeCipher:
    return EnvelopeCipher(SECRETS[owner], session=session, owner=owner)


def sealed(text: bytes = TEXT) -> bytes:
    return channel(0).seal(text, receiver=1, receiver_key=KEYS[1])


def test_an_envelope_opens_for_its_receiver() -> None:
    assert channel(1).open(sealed(), sender=0, sender_key=KEYS[0]) == TEXT


@pytest.mark.parametrize("sums", [0, 1, 3, 64])
def test_an_envelope_is_as_long_as_two_shares_per_sum_and_a_tag(sums: int) -> None:
    assert len(sealed(bytes(66 * sums))) == envelope_bytes(sums) == 66 * sums + TAG_BYTES


def test_every_changed_bit_is_noticed() -> None:
    envelope = sealed()
    for position in range(len(envelope)):
        changed = bytearray(envelope)
        changed[position] ^= 1 << position % 8
        assert channel(1).open(bytes(changed), sender=0, sender_key=KEYS[0]) is None


@pytest.mark.parametrize("length", [0, 1, TAG_BYTES - 1, TAG_BYTES, 66 + TAG_BYTES - 1])
def test_an_envelope_that_is_cut_short_does_not_open(length: int) -> None:
    assert channel(1).open(sealed()[:length], sender=0, sender_key=KEYS[0]) is None


def test_nobody_else_opens_it() -> None:
    envelope = sealed()
    assert channel(2).open(envelope, sender=0, sender_key=KEYS[0]) is None
    assert channel(1).open(envelope, sender=2, sender_key=KEYS[2]) is None
    assert channel(1).open(envelope, sender=2, sender_key=KEYS[0]) is None  # the right key, another name
    assert channel(1, session=b"t" * 32).open(envelope, sender=0, sender_key=KEYS[0]) is None


def test_it_cannot_be_reflected_to_its_sender() -> None:
    """Both directions share one X25519 point; the key and the associated data tell them apart."""
    envelope = sealed()
    assert channel(0).open(envelope, sender=1, sender_key=KEYS[1]) is None
    back = channel(1).seal(TEXT, receiver=0, receiver_key=KEYS[0])
    assert back != envelope
    assert channel(0).open(back, sender=1, sender_key=KEYS[1]) == TEXT


def test_one_text_looks_different_to_every_receiver_and_session() -> None:
    envelopes = {
        channel(0, session=session).seal(TEXT, receiver=receiver, receiver_key=KEYS[receiver])
        for session in (SESSION, b"t" * 32)
        for receiver in (1, 2)
    }
    assert len(envelopes) == 4


def test_one_end_seals_and_opens_like_two_fresh_ones() -> None:
    """What it remembers of a peer from sealing is of use for opening, and changes nothing."""
    ours, theirs = channel(0), channel(1)
    there = ours.seal(TEXT, receiver=1, receiver_key=KEYS[1])
    back = theirs.seal(TEXT[::-1], receiver=0, receiver_key=KEYS[0])
    assert there == sealed()
    assert back == channel(1).seal(TEXT[::-1], receiver=0, receiver_key=KEYS[0])
    assert theirs.open(there, sender=0, sender_key=KEYS[0]) == TEXT
    assert ours.open(back, sender=1, sender_key=KEYS[1]) == TEXT[::-1]
    assert ours.open(there, sender=1, sender_key=KEYS[1]) is None
    assert ours.open(back, sender=2, sender_key=KEYS[2]) is None

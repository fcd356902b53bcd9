"""Share envelopes: the encrypted shares from one client to another, their sizes, sealing and opening."""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg import keys
from secagg.keys import Agreement, OneTime
from secagg.shamir import SHARE_BYTES

TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)


def shares_bytes(seeds: int) -> int:
    """Return how many bytes of shares one client deals to one other client for one sum: a share of the
    self-mask secret, one of the mask key, and one of each of `seeds` noise seeds."""
    return SHARE_BYTES * (2 + seeds)


def envelope_bytes(sums: int, seeds: int = 0) -> int:
    """Return the bytes of an envelope: one client's encrypted shares for one other client, for `sums` sums
    with `seeds` noise seeds each."""
    return shares_bytes(seeds) * sums + TAG_BYTES


class EnvelopeCipher(OneTime):
    """Seals and opens envelopes, the encrypted shares between `owner` and other clients in one session."""

    def __init__(self, secret: bytes, *, session: bytes, owner: int) -> None:
        self._agreement = Agreement(secret)
        self._session = session
        self._owner = owner

    def seal(self, plaintext: bytes, *, receiver: int, receiver_key: bytes) -> bytes:
        info = keys.envelope_info(self._owner, receiver)
        key = self._agreement.derive(receiver_key, salt=self._session, info=info)
        return AESGCM(key).encrypt(_NONCE, plaintext, self._session + info)

    def open(self, envelope: bytes, *, sender: int, sender_key: bytes) -> bytes | None:
        """Return the plaintext, or None if `sender` did not seal the envelope for this client and session."""
        info = keys.envelope_info(sender, self._owner)
        key = self._agreement.derive(sender_key, salt=self._session, info=info)
        try:
            return AESGCM(key).decrypt(_NONCE, envelope, self._session + info)
        except InvalidTag:
            return None

"""Envelopes: the shares one client deals another, sealed so that the server only carries them.

AES-256-GCM under a key that X25519 and HKDF bind to (session, sender, receiver). A machine seals one
envelope per key and never again, so the nonce is constant.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.keys import Agreement, envelope_info
from secagg.onetime import OneTime
from secagg.shamir import SHARE_BYTES

TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)


def shares_bytes(seeds: int) -> int:
    """Shares of one sum: of the self-mask secret, of the mask key, and of each seed of removable noise."""
    return SHARE_BYTES * (2 + seeds)


def envelope_bytes(sums: int, seeds: int = 0) -> int:
    """Length of an envelope that carries the shares of `sums` sums."""
    return shares_bytes(seeds) * sums + TAG_BYTES


class Channel(OneTime):
    """One client's end of its sealed channels to all others within a session.

    Both directions of a channel rest on one shared point: who seals and opens with the same object pays for
    it once.
    """

    def __init__(self, secret: bytes, *, session: bytes, owner: int) -> None:
        self._agreement = Agreement(secret)
        self._session = session
        self._owner = owner

    def seal(self, plaintext: bytes, *, receiver: int, receiver_key: bytes) -> bytes:
        info = envelope_info(self._owner, receiver)
        key = self._agreement.derive(receiver_key, salt=self._session, info=info)
        return AESGCM(key).encrypt(_NONCE, plaintext, self._session + info)

    def open(self, envelope: bytes, *, sender: int, sender_key: bytes) -> bytes | None:
        """The plaintext, or None where the envelope was not sealed by `sender` for us in this session."""
        info = envelope_info(sender, self._owner)
        key = self._agreement.derive(sender_key, salt=self._session, info=info)
        try:
            return AESGCM(key).decrypt(_NONCE, envelope, self._session + info)
        except InvalidTag:
            return None

"""Share envelopes: the encrypted shares from one client to another, their sizes, sealing and opening."""

from __future__ import annotations

from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg import keys
from secagg.hybrid_keys import CIPHERTEXT_BYTES, Encapsulate, Encapsulation, KemKey
from secagg.keys import Agreement, OneTime
from secagg.shamir import SHARE_BYTES

TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)
_NOTHING: Final = Encapsulation(b"", b"")


def shares_bytes(seeds: int) -> int:
    """Return how many bytes of shares one client deals to one other client for one sum: a share of the
    self-mask secret, one of the mask key, and one of each of `seeds` noise seeds."""
    return SHARE_BYTES * (2 + seeds)


def envelope_bytes(sums: int, seeds: int = 0) -> int:
    """Return the bytes of an envelope: one client's encrypted shares for one other client, for `sums` sums
    with `seeds` noise seeds each."""
    return shares_bytes(seeds) * sums + TAG_BYTES


class PublicKeys(Protocol):
    """The id of a client and its public keys for envelopes, as in its advert."""

    @property
    def member(self) -> int: ...
    @property
    def channel_key(self) -> bytes: ...
    @property
    def kem_key(self) -> bytes: ...


class EnvelopeCipher(OneTime):
    """Seals and opens envelopes, the encrypted shares between `owner` and other clients in one session. With
    hybrid key agreement, `kem` is the owner's KEM key, and an envelope begins with a KEM ciphertext. The KEM
    secrets of each peer are kept in `sent` and `received`."""

    def __init__(
        self, secret: bytes, *, session: bytes, owner: int, kem: KemKey | None, encapsulate: Encapsulate
    ) -> None:
        self._agreement = Agreement(secret)
        self._session = session
        self._owner = owner
        self._kem = kem
        self._encapsulate = encapsulate
        self.sent: dict[int, Encapsulation] = {}
        self.received: dict[int, Encapsulation] = {}

    def seal(self, plaintext: bytes, *, receiver: PublicKeys) -> bytes:
        member = receiver.member
        inner = _NOTHING if self._kem is None else self._encapsulate(receiver.kem_key)
        self.sent[member] = inner
        info = keys.envelope_info(self._owner, member)
        sealed = self._cipher(receiver.channel_key, info, inner).encrypt(
            _NONCE, plaintext, self._session + info
        )
        return inner.ciphertext + sealed

    def open(self, envelope: bytes, *, sender: PublicKeys) -> bytes | None:
        """Return the plaintext, or None if `sender` did not seal the envelope for this client and session."""
        size = 0 if self._kem is None else CIPHERTEXT_BYTES
        inner = _NOTHING if self._kem is None else self._kem.open(envelope[:size])
        info = keys.envelope_info(sender.member, self._owner)
        cipher = self._cipher(sender.channel_key, info, inner)
        try:
            plaintext = cipher.decrypt(_NONCE, envelope[size:], self._session + info)
        except InvalidTag:
            return None
        self.received[sender.member] = inner
        return plaintext

    def _cipher(self, peer_key: bytes, info: bytes, inner: Encapsulation) -> AESGCM:
        bound = info + inner.ciphertext
        return AESGCM(self._agreement.derive(peer_key, salt=self._session, info=bound, more=inner.secret))

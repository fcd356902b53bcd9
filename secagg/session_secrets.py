"""The one-time secrets that a client stores for one session: its own, and its shares of others' secrets. Each
sum has its own independent secrets. If a client drops out of one sum, the secrets revealed for that sum
therefore say nothing about its input to another. A secret is returned once and then erased (its references
are dropped; Python does not overwrite memory)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from secagg import keys, shamir
from secagg.errors import SERVER, SecretReused
from secagg.hybrid_keys import (
    KEM_SEED_BYTES,
    Encapsulate,
    KemKey,
    KeyAgreement,
    encapsulate,
    mask_key_of,
    padded,
    pair_secrets,
    secret_tag,
)
from secagg.keys import KEY_BYTES, OneTime, Random
from secagg.shamir import SHARE_BYTES
from secagg.share_envelopes import EnvelopeCipher, shares_bytes
from secagg.share_tags import RevealedRow, revealed_columns


class MaskSecrets(OneTime):
    """The secrets of a client's masks in one sum: its private X25519 key, its self-mask secret and, with
    hybrid key agreement, its pair secrets by the position of the neighbour."""

    def __init__(self, mask_key: bytes, self_mask: bytes, pair_secrets: Mapping[int, bytes]) -> None:
        self.mask_key = mask_key
        self.self_mask = self_mask
        self.pair_secrets = pair_secrets


class Vault(OneTime):
    """The one-time secrets of client `owner` for `sums` sums, including `seeds` seeds of removable noise per
    sum, its channel key, and the shares that it holds of other clients' secrets. With hybrid key agreement,
    it also holds a KEM key, and a pair secret for each neighbour and sum."""

    def __init__(
        self,
        *,
        owner: int,
        sums: int,
        random: Random,
        seeds: int = 0,
        agreement: KeyAgreement = KeyAgreement.X25519,
        encapsulate: Encapsulate = encapsulate,
    ) -> None:
        self._owner = owner
        self._random = random
        self._agreement = agreement
        self._encapsulate = encapsulate
        self._channel = random(KEY_BYTES)
        self._kem = KemKey(random(KEM_SEED_BYTES)) if agreement is KeyAgreement.HYBRID else None
        self._channels: dict[bytes, EnvelopeCipher] = {}  # by session id
        self._pair_secrets: dict[int, dict[int, bytes]] = {k: {} for k in range(sums)}  # sum -> position
        self._mask_keys = {k: random(KEY_BYTES) for k in range(sums)}  # the dealt secrets of mask keys
        self._self_masks = {k: random(KEY_BYTES) for k in range(sums)}
        self._noise = {k: tuple(random(KEY_BYTES) for _ in range(seeds)) for k in range(sums)}
        self._row_bytes = shares_bytes(seeds)
        self._held: dict[int, dict[int, bytes]] = {k: {} for k in range(sums)}

    def __repr__(self) -> str:
        return f"Vault(owner={self._owner})"

    # --- set-up ---

    def channel_key(self) -> bytes:
        return keys.public_key(self._channel)

    def kem_key(self) -> bytes:
        return b"" if self._kem is None else self._kem.public()

    def mask_public_keys(self) -> tuple[bytes, ...]:
        secrets = self._mask_keys.values()
        return tuple(keys.public_key(mask_key_of(secret, self._agreement)) for secret in secrets)

    def commitments(self) -> tuple[bytes, ...]:
        """Return commitments to the self-mask secrets of all sums, then to their seeds of removable noise."""
        masks = [keys.seed_commitment(s, owner=self._owner, sum_index=k) for k, s in self._self_masks.items()]
        noise = [
            keys.noise_commitment(seed, owner=self._owner, sum_index=k, layer=layer)
            for k, seeds in self._noise.items()
            for layer, seed in enumerate(seeds, start=1)
        ]
        return (*masks, *noise)

    def channel(self, session: bytes) -> EnvelopeCipher:
        """Return the cipher that encrypts shares for other clients, and decrypts theirs, in `session`. Raises
        `SecretReused` after `forget_channel`."""
        if not self._channel:
            raise SecretReused(SERVER, "the channel key was erased")
        if session not in self._channels:
            self._channels[session] = EnvelopeCipher(
                self._channel,
                session=session,
                owner=self._owner,
                kem=self._kem,
                encapsulate=self._encapsulate,
            )
        return self._channels[session]

    def forget_channel(self) -> None:
        """Erase the keys that encrypt shares in transit. Call this after all received shares were opened."""
        self._channel = b""
        self._kem = None
        self._channels.clear()

    def deposits(self, session: bytes, peers: Mapping[int, int]) -> dict[int, bytes]:
        """Compute and store the pair secrets with all `peers` (position -> id) whose shares were opened.
        Return their deposits for all sums, by position."""
        channel, found = self.channel(session), {}
        for position, peer in peers.items():
            if peer not in channel.received:
                continue
            ends = {self._owner: channel.sent[peer], peer: channel.received[peer]}
            pair = (min(ends), max(ends))
            secrets = pair_secrets(
                ends[pair[0]], ends[pair[1]], session=session, pair=pair, sums=len(self._mask_keys)
            )
            for k, secret in enumerate(secrets):
                self._pair_secrets[k][position] = secret
            found[position] = b"".join(
                self._deposit(session, peer, k, each) for k, each in enumerate(secrets)
            )
        return found

    def _deposit(self, session: bytes, peer: int, sum_index: int, secret: bytes) -> bytes:
        names = {"owner": self._owner, "peer": peer, "sum_index": sum_index}
        hidden = padded(secret, secret=self._mask_keys[sum_index], session=session, **names)
        tag = secret_tag(secret, session=session, pair=(self._owner, peer), sum_index=sum_index)
        return hidden + tag

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        """Secret-share all secrets among `holders` clients; any `threshold` can reconstruct them. Return the
        bytes for each: sum by sum, a share of the self-mask secret, the mask key and each noise seed."""
        secrets = [
            secret
            for k, key in self._mask_keys.items()
            for secret in (self._self_masks[k], key, *self._noise[k])
        ]
        columns = [
            shamir.deal(secret, threshold=threshold, holders=holders, random=self._random)
            for secret in secrets
        ]
        return [shamir.shares_to_bytes(row) for row in zip(*columns, strict=True)]

    def hold(self, position: int, plaintext: bytes) -> None:
        """Store the shares in `plaintext`, which the member at `position` dealt to this client."""
        for k, held in self._held.items():
            held[position] = plaintext[k * self._row_bytes : (k + 1) * self._row_bytes]

    # --- one sum ---

    def noise_seeds(self, sum_index: int) -> tuple[bytes, ...]:
        """Return the seeds of the removable noise of a sum. Raises `SecretReused` if they were erased."""
        if sum_index not in self._noise:
            raise SecretReused(SERVER, "the noise of this sum was used or erased")
        return self._noise[sum_index]

    def take_mask_secrets(self, sum_index: int) -> MaskSecrets:
        """Return the mask secrets of a sum, and erase them and its noise seeds, so that they mask only one
        vector. Raises `SecretReused` if they were erased before."""
        if sum_index not in self._mask_keys:
            raise SecretReused(SERVER, "the masks of this sum were used or erased")
        del self._noise[sum_index]
        mask_key = mask_key_of(self._mask_keys.pop(sum_index), self._agreement)
        return MaskSecrets(mask_key, self._self_masks.pop(sum_index), self._pair_secrets.pop(sum_index))

    def take_shares(
        self,
        sum_index: int,
        *,
        roster: Sequence[int],
        survivors: AbstractSet[int],
        surplus: Iterable[int] = (),
        hashes: Callable[[int, bytes], Sequence[bytes]],
    ) -> dict[int, RevealedRow]:
        """Return what to reveal, by the position of the dealer, and erase all shares of the sum. Of a
        survivor, reveal the shares of its self-mask secret and of its noise seeds in `surplus` (counted from
        1). Of a drop-out, reveal the share of its mask key. As the others are erased, the server gets
        neither both kinds for one client, nor seeds of noise that must stay. `hashes(position, row)` returns
        the hashes of all shares in a row. Raises `SecretReused` if already erased."""
        taken = revealed_columns(surplus)
        held = self._held.pop(sum_index, None)
        if held is None:
            raise SecretReused(SERVER, "the shares of this sum were released or erased")
        rows = {}
        for position in roster:
            if position in held:
                row, columns = held[position], taken[position in survivors]
                kept = [each for k, each in enumerate(hashes(position, row)) if k not in columns]
                rows[position] = RevealedRow(_cut(row, columns), b"".join(kept))
        return rows

    def erase_before(self, sum_index: int) -> None:
        """Erase all secrets and held shares of the sums with an index below `sum_index`."""
        for k in range(sum_index):
            self._mask_keys.pop(k, None)
            self._self_masks.pop(k, None)
            self._pair_secrets.pop(k, None)
            self._noise.pop(k, None)
            self._held.pop(k, None)

    def erase(self) -> None:
        """Erase all secrets of this client, and all shares that it holds."""
        self.forget_channel()
        self._mask_keys.clear()
        self._self_masks.clear()
        self._pair_secrets.clear()
        self._noise.clear()
        self._held.clear()


def _cut(row: bytes, columns: Iterable[int]) -> bytes:
    return b"".join(row[k * SHARE_BYTES : (k + 1) * SHARE_BYTES] for k in columns)

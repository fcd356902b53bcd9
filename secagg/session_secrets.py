"""The one-time secrets that a client stores for one session: its own, and its shares of others' secrets. Each
sum has its own independent secrets. If a client drops out of one sum, the secrets revealed for that sum
therefore say nothing about its input to another. A secret is returned once and then erased (its references
are dropped; Python does not overwrite memory)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from secagg import keys, shamir
from secagg.errors import SERVER, SecretReused
from secagg.keys import KEY_BYTES, OneTime, Random
from secagg.shamir import SHARE_BYTES
from secagg.share_envelopes import EnvelopeCipher, shares_bytes


class Vault(OneTime):
    """The one-time secrets of client `owner` for `sums` sums, including `seeds` seeds of removable noise per
    sum, its channel key, and the shares that it holds of other clients' secrets."""

    def __init__(self, *, owner: int, sums: int, random: Random, seeds: int = 0) -> None:
        self._owner = owner
        self._random = random
        self._channel = random(KEY_BYTES)
        self._channels: dict[bytes, EnvelopeCipher] = {}  # by session id
        self._mask_keys = {k: random(KEY_BYTES) for k in range(sums)}
        self._self_masks = {k: random(KEY_BYTES) for k in range(sums)}
        self._noise = {k: tuple(random(KEY_BYTES) for _ in range(seeds)) for k in range(sums)}
        self._row_bytes = shares_bytes(seeds)
        self._held: dict[int, dict[int, bytes]] = {k: {} for k in range(sums)}

    def __repr__(self) -> str:
        return f"Vault(owner={self._owner})"

    # --- set-up ---

    def channel_key(self) -> bytes:
        return keys.public_key(self._channel)

    def mask_public_keys(self) -> tuple[bytes, ...]:
        return tuple(keys.public_key(secret) for secret in self._mask_keys.values())

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
            self._channels[session] = EnvelopeCipher(self._channel, session=session, owner=self._owner)
        return self._channels[session]

    def forget_channel(self) -> None:
        """Erase the key that encrypts shares in transit. Call this after all received shares were opened."""
        self._channel = b""
        self._channels.clear()

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

    def take_mask_secrets(self, sum_index: int) -> tuple[bytes, bytes]:
        """Return (mask key, self-mask secret) of a sum, and erase them and its noise seeds, so that they mask
        only one vector. Raises `SecretReused` if they were erased before."""
        if sum_index not in self._mask_keys:
            raise SecretReused(SERVER, "the masks of this sum were used or erased")
        del self._noise[sum_index]
        return self._mask_keys.pop(sum_index), self._self_masks.pop(sum_index)

    def take_shares(
        self,
        sum_index: int,
        *,
        roster: Sequence[int],
        survivors: AbstractSet[int],
        surplus: Iterable[int] = (),
    ) -> dict[int, bytes]:
        """Return the shares to reveal, by the position of their dealer, and erase all shares of the sum. Of a
        survivor, reveal the shares of its self-mask secret and of its noise seeds in `surplus` (counted from
        1). Of a drop-out, reveal the share of its mask key. As the others are erased, nobody can get both
        kinds for one client, or seeds of noise that must stay. Raises `SecretReused` if already erased."""
        taken = (0, *(1 + layer for layer in surplus))
        held = self._held.pop(sum_index, None)
        if held is None:
            raise SecretReused(SERVER, "the shares of this sum were released or erased")
        return {
            position: _cut(held[position], taken if position in survivors else (1,))
            for position in roster
            if position in held
        }

    def erase_before(self, sum_index: int) -> None:
        """Erase all secrets and held shares of the sums with an index below `sum_index`."""
        for k in range(sum_index):
            self._mask_keys.pop(k, None)
            self._self_masks.pop(k, None)
            self._noise.pop(k, None)
            self._held.pop(k, None)

    def erase(self) -> None:
        """Erase all secrets of this client, and all shares that it holds."""
        self.forget_channel()
        self._mask_keys.clear()
        self._self_masks.clear()
        self._noise.clear()
        self._held.clear()


def _cut(row: bytes, columns: Iterable[int]) -> bytes:
    return b"".join(row[k * SHARE_BYTES : (k + 1) * SHARE_BYTES] for k in columns)

"""The one-time secrets of one session: a client's own, and the shares it holds for others.

Each sum has secrets of its own, which share nothing with those of any other sum: what is revealed about a
client that drops at one sum says nothing about its input to another. They leave the vault once and are
then forgotten (as far as Python forgets: references are dropped, memory is not scrubbed).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

from secagg import shamir
from secagg.envelope import SHARES_BYTES, Channel
from secagg.errors import SERVER, SecretReused
from secagg.keys import KEY_BYTES, Random, public_key, seed_commitment
from secagg.onetime import OneTime
from secagg.shamir import SHARE_BYTES


class Vault(OneTime):
    """Secrets of `sums` sums for the client `owner`."""

    def __init__(self, *, owner: int, sums: int, random: Random) -> None:
        self._owner = owner
        self._random = random
        self._channel = random(KEY_BYTES)
        self._channels: dict[bytes, Channel] = {}  # session -> our end
        self._mask_keys = {k: random(KEY_BYTES) for k in range(sums)}
        self._self_masks = {k: random(KEY_BYTES) for k in range(sums)}
        self._held: dict[int, dict[int, bytes]] = {k: {} for k in range(sums)}

    def __repr__(self) -> str:
        return f"Vault(owner={self._owner})"

    # --- set-up ---

    def channel_key(self) -> bytes:
        return public_key(self._channel)

    def mask_public_keys(self) -> tuple[bytes, ...]:
        return tuple(public_key(secret) for secret in self._mask_keys.values())

    def commitments(self) -> tuple[bytes, ...]:
        return tuple(
            seed_commitment(secret, owner=self._owner, sum_index=k) for k, secret in self._self_masks.items()
        )

    def channel(self, session: bytes) -> Channel:
        """Our end of the sealed channels of a session: the same one for sealing as for opening."""
        if not self._channel:
            raise SecretReused(SERVER, "the channel key was erased")
        if session not in self._channels:
            self._channels[session] = Channel(self._channel, session=session, owner=self._owner)
        return self._channels[session]

    def forget_channel(self) -> None:
        """Once all envelopes are open, nobody needs to open them again."""
        self._channel = b""
        self._channels.clear()

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        """The plaintext for each holder: per sum, its share of the self mask, then of the mask key."""
        secrets = chain.from_iterable((self._self_masks[k], key) for k, key in self._mask_keys.items())
        columns = [
            shamir.deal(secret, threshold=threshold, holders=holders, random=self._random)
            for secret in secrets
        ]
        return [shamir.shares_to_bytes(row) for row in zip(*columns, strict=True)]

    def hold(self, position: int, plaintext: bytes) -> None:
        """Keep the shares that the member at `position` dealt us."""
        for k, held in self._held.items():
            held[position] = plaintext[k * SHARES_BYTES : (k + 1) * SHARES_BYTES]

    # --- one sum ---

    def take_mask_secrets(self, sum_index: int) -> tuple[bytes, bytes]:
        """(mask key, self-mask secret) of a sum. They mask one vector and are gone."""
        if sum_index not in self._mask_keys:
            raise SecretReused(SERVER, "the masks of this sum were used or erased")
        return self._mask_keys.pop(sum_index), self._self_masks.pop(sum_index)

    def take_shares(
        self, sum_index: int, *, roster: Sequence[int], survivors: AbstractSet[int]
    ) -> dict[int, bytes]:
        """One share per member of the roster: of its self mask if it survived, else of its mask key.

        All shares of the sum are gone afterwards, so nobody obtains both kinds for one member.
        """
        held = self._held.pop(sum_index, None)
        if held is None:
            raise SecretReused(SERVER, "the shares of this sum were released or erased")
        return {
            position: held[position][:SHARE_BYTES] if position in survivors else held[position][SHARE_BYTES:]
            for position in roster
            if position in held
        }

    def erase_before(self, sum_index: int) -> None:
        """Forget everything of earlier sums, used or skipped."""
        for k in range(sum_index):
            self._mask_keys.pop(k, None)
            self._self_masks.pop(k, None)
            self._held.pop(k, None)

    def erase(self) -> None:
        """Forget everything."""
        self.forget_channel()
        self._mask_keys.clear()
        self._self_masks.clear()
        self._held.clear()

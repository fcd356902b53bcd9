"""Clients that lie in the ways that a transcript lists, and are honest otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.second_implementation.client import Client


@dataclass(frozen=True)
class Lies:
    """The lies of one client."""

    # By sum: what it deals instead of its self-mask secret, and what it contributes to the hidden count.
    decoys: Mapping[int, bytes] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    # By sum and dealer: what it reveals instead of a survivor's share.
    wrong_shares: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)
    # The holders to which it sends zeros instead of an envelope.
    unreadable: Collection[int] = ()


class Liar(Client):
    """A client with lies."""

    lies: Lies

    def _envelope(self, holder: int, plaintext: bytes) -> bytes:
        honest = super()._envelope(holder, plaintext)
        return bytes(len(honest)) if holder in self.lies.unreadable else honest

    def _dealt(self, k: int, column: int) -> bytes:
        honest = super()._dealt(k, column)
        return self.lies.decoys.get(k, honest) if column == 0 else honest

    def _hidden_count(self) -> int:
        return self.lies.counts.get(self.sum.k, super()._hidden_count())

    def _shown(self, dealer: int, share: bytes) -> bytes:
        return self.lies.wrong_shares.get(self.sum.k, {}).get(dealer, share)

"""Clients that lie about removable noise: as dealers of its seeds, as holders of shares, or as its source.

What a client adds to its own input cannot be checked, noise or not. What it must not be able to do is to move
the total by what it says afterwards, or to stop the others for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Self, TypeAlias

from secagg import messages as m
from secagg import shamir
from secagg.client import ClientMachine
from secagg.events import ClientStep
from secagg.message_records import Advert
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES

Seeds: TypeAlias = dict[int, tuple[bytes, ...]]  # by sum


class _TwoFacedVault(Vault):
    """A vault with the seeds that it published, and with others."""

    decoys: Seeds

    @classmethod
    def over(cls, vault: Vault) -> Self:
        """The same vault, secrets and all."""
        changed = cls.__new__(cls)
        changed.__dict__ = vault.__dict__
        changed.decoys = {k: tuple(vault._random(32) for _ in seeds) for k, seeds in vault._noise.items()}
        return changed


class _DealsDecoys(_TwoFacedVault):
    """Noise is drawn from what was published, and shares are of something else."""

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        published, self._noise = self._noise, self.decoys
        texts = super().deal(threshold=threshold, holders=holders)
        self._noise = published
        return texts


class _DrawsDecoys(_TwoFacedVault):
    """Shares are of what was published, and noise is drawn from something else."""

    def noise_seeds(self, sum_index: int) -> tuple[bytes, ...]:
        return self.decoys[sum_index]


class _LiesAboutNoise(_TwoFacedVault):
    """Shares of masks are right, and all shares of noise off by one."""

    def take_shares(
        self,
        sum_index: int,
        *,
        roster: Sequence[int],
        survivors: AbstractSet[int],
        surplus: Iterable[int] = (),
    ) -> dict[int, bytes]:
        rows = super().take_shares(sum_index, roster=roster, survivors=survivors, surplus=surplus)
        return {dealer: row[:SHARE_BYTES] + _off_by_one(row[SHARE_BYTES:]) for dealer, row in rows.items()}


def _off_by_one(shares: bytes) -> bytes:
    values = shamir.shares_from_bytes(shares)
    assert values is not None  # they were dealt by honest clients
    return shamir.shares_to_bytes([(value + 1) % shamir.PRIME for value in values])


class _TwoFacedClient(ClientMachine):
    """`published` and `decoys` are known to whoever controls it."""

    _kind: ClassVar[type[_TwoFacedVault]]

    def _make_advert(self) -> Advert:
        self._vault = vault = self._kind.over(self._vault)
        self.published, self.decoys = dict(vault._noise), vault.decoys
        return super()._make_advert()


class NoiseForger(_TwoFacedClient):
    """Deals shares of other seeds than it published commitments to."""

    _kind = _DealsDecoys


class NoiseSwapper(_TwoFacedClient):
    """Adds noise of other seeds than it published and dealt."""

    _kind = _DrawsDecoys


class NoiseLiar(_TwoFacedClient):
    """Reveals wrong shares of everybody's noise."""

    _kind = _LiesAboutNoise


class ReplayingHolder(ClientMachine):
    """Reveals in every sum the shares that it revealed in the first one."""

    _first: bytes = b""

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        return ClientStep(tuple(map(self._replay, step.frames)), step.events)

    def _replay(self, frame: bytes) -> bytes:
        message = m.decode(frame, sender=self.member, limit=1 << 30)
        if not isinstance(message, m.Reveal):
            return frame
        self._first = self._first or message.shares
        return m.Reveal(message.context, message.sum_index, message.dealers, self._first).encode()

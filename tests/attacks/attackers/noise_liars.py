"""Clients that lie about removable noise: as dealers of its seeds, as holders of shares, or as its source.

What a client adds to its own input cannot be checked, noise or not. What it must not be able to do is to move
the total by what it says afterwards, or to stop the others for good.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.message_records import Advert
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import RevealedRow
from tests.attacks.attackers.bad_clients import RevealingClient, off_by_one

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

    def take_shares(self, sum_index: int, **request: Any) -> dict[int, RevealedRow]:
        rows = super().take_shares(sum_index, **request)
        return {dealer: row._replace(shares=_spoil_noise(row.shares)) for dealer, row in rows.items()}


def _spoil_noise(shares: bytes) -> bytes:
    return shares[:SHARE_BYTES] + off_by_one(shares[SHARE_BYTES:])


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


class ReplayingHolder(RevealingClient):
    """Reveals in every sum the shares that it revealed in the first one, with the hashes of the others."""

    _first: m.Reveal | None = None

    def change(self, reveal: m.Reveal) -> m.Reveal:
        self._first = self._first or reveal
        return replace(reveal, shares=self._first.shares, hidden=self._first.hidden)

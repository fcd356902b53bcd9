"""The client's side of the share exchange: encrypts shares for neighbours, and decrypts received shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg import client_checks
from secagg.cohort_members import CohortView
from secagg.identity_registry import Registry
from secagg.message_records import Format, Parcel, parse_parcels
from secagg.session_secrets import Vault
from secagg.shamir import shares_from_bytes
from secagg.share_envelopes import EnvelopeCipher


@dataclass(frozen=True)
class ShareExchange:
    """Client `member`'s side of the exchange of secret shares with its neighbours in the graph."""

    member: int
    cohort: CohortView
    vault: Vault = field(repr=False)
    form: Format
    registry: Registry | None

    def seal_shares(self) -> bytes:
        """Secret-share this client's one-time secrets: store its own shares, and return those for its
        neighbours, encrypted and joined in the order of their positions."""
        cohort = self.cohort
        plaintexts = self.vault.deal(threshold=cohort.threshold, holders=len(cohort.neighbourhood))
        channel = self.vault.channel(cohort.session)
        envelopes = []
        for position, text in zip(cohort.neighbourhood, plaintexts, strict=True):
            if position == cohort.position[self.member]:
                self.vault.hold(position, text)
                continue
            peer = cohort.adverts[position]
            envelopes.append(channel.seal(text, receiver=peer.member, receiver_key=peer.channel_key))
        return b"".join(envelopes)

    def open_parcels(self, blob: bytes) -> tuple[set[int], list[int]]:
        """Check and decrypt the parcels of shares in `blob`, and store the shares. Return the positions of
        this client and all senders of parcels, and the ids of senders whose shares cannot be opened. Raises
        `PeerError`, before any is opened, if a parcel has a wrong form, sender or signature."""
        parcels = parse_parcels(blob, self.form, most=len(self.cohort.neighbourhood))
        for parcel in parcels:
            client_checks.check_parcel_sender(parcel, self.cohort, self.member)
            if self.registry is not None:
                client_checks.check_parcel_signature(parcel, self.cohort, self.registry)
        channel = self.vault.channel(self.cohort.session)
        lost = [parcel.sender for parcel in parcels if not self._open(parcel, channel)]
        position = self.cohort.position
        return {position[self.member], *(position[parcel.sender] for parcel in parcels)}, lost

    def _open(self, parcel: Parcel, channel: EnvelopeCipher) -> bool:
        """Decrypt and store the shares in a parcel. Return False if they do not decrypt or are invalid."""
        position = self.cohort.position[parcel.sender]
        key = self.cohort.adverts[position].channel_key
        plaintext = channel.open(parcel.envelope, sender=parcel.sender, sender_key=key)
        if plaintext is None or shares_from_bytes(plaintext) is None:
            return False
        self.vault.hold(position, plaintext)
        return True

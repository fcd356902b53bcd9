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
from secagg.share_tags import receipt, tags_digest, tags_of


@dataclass(frozen=True)
class ShareExchange:
    """Client `member`'s side of the exchange of secret shares with its neighbours in the graph."""

    member: int
    cohort: CohortView
    vault: Vault = field(repr=False)
    form: Format
    registry: Registry | None
    accepted: dict[int, bytes] = field(default_factory=dict)  # position of a dealer -> digest of its tags

    def seal_shares(self) -> tuple[bytes, bytes]:
        """Secret-share this client's one-time secrets, and store its own shares. Return the shares for its
        neighbours, encrypted and joined in the order of their positions, and the tags of all shares."""
        cohort = self.cohort
        plaintexts = self.vault.deal(threshold=cohort.threshold, holders=len(cohort.neighbourhood))
        channel = self.vault.channel(cohort.session)
        envelopes, tags = [], []
        for position, text in zip(cohort.neighbourhood, plaintexts, strict=True):
            peer = cohort.adverts[position]
            tags.append(self._tags(text, dealer=self.member, holder=peer.member))
            if peer.member == self.member:
                self.vault.hold(position, text)
                self.accepted[position] = tags_digest(tags[-1])
            else:
                envelopes.append(channel.seal(text, receiver=peer))
        return b"".join(envelopes), b"".join(tags)

    def _tags(self, plaintext: bytes, *, dealer: int, holder: int) -> bytes:
        return tags_of(
            plaintext, session=self.cohort.session, dealer=dealer, holder=holder, sums=self.form.sums
        )

    def deposits(self) -> dict[int, bytes]:
        """Return the deposits for all neighbours whose shares were accepted, by position. Empty unless the
        key agreement is hybrid. Call this after `open_parcels`."""
        if not self.form.is_hybrid:
            return {}
        peers = {each: self.cohort.ids[each] for each in sorted(self.accepted)}
        return self.vault.deposits(self.cohort.session, peers)

    def receipt(self) -> bytes:
        """Return the digest of the tags that this client accepted: its shares of these dealers fit them."""
        ids = self.cohort.ids
        return receipt((ids[position], self.accepted[position]) for position in sorted(self.accepted))

    def open_parcels(self, blob: bytes) -> tuple[set[int], list[int]]:
        """Check and decrypt the parcels of shares in `blob`, and store the shares. Return the positions of
        this client and all senders of parcels, and the ids of senders whose shares cannot be opened, or do
        not fit their tags. Raises `PeerError`, before any is opened, if a parcel has a wrong form, sender or
        signature."""
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
        """Decrypt and store the shares in a parcel. Return False if they do not decrypt, are invalid, or do
        not fit the tags that the sender published."""
        position = self.cohort.position[parcel.sender]
        plaintext = channel.open(parcel.envelope, sender=self.cohort.adverts[position])
        if plaintext is None or shares_from_bytes(plaintext) is None:
            return False
        tags = self._tags(plaintext, dealer=parcel.sender, holder=self.member)
        if tags_digest(tags) != parcel.tags:
            channel.received.pop(parcel.sender)
            return False
        self.vault.hold(position, plaintext)
        self.accepted[position] = parcel.tags
        return True

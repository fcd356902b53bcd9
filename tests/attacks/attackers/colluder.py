"""A colluder: a member of the cohort whose keys, shares and signature are in the server's hands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from secagg.cohort_members import Cohort, invitation_digest
from secagg.insecure_seeds import SeededRandom
from secagg.message_records import Advert, Parcel
from secagg.query_context import Question
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_envelopes import EnvelopeCipher, shares_bytes
from secagg.share_tags import tags_digest, tags_of
from secagg.trust_levels import Trust
from tests.attacks.rig import Dealt, Rig


class Colluder:
    """Takes part in set-up like anybody else, keeps what it is dealt, and signs whatever it is shown."""

    def __init__(self, rig: Rig, member: int) -> None:
        self.member = member
        self._sums = rig.sums
        self._seeds = rig.table.seeds
        self._identity = rig.identity(member) if rig.trust is Trust.MALICIOUS else None
        random = SeededRandom(rig.seed, b"colluder", member.to_bytes(4, "big"))
        agreement = rig.policy.key_agreement
        self._vault = Vault(
            owner=member, sums=rig.sums, random=random, seeds=self._seeds, agreement=agreement
        )
        self._dealt: dict[int, bytes] = {}  # dealer -> plaintext of its envelope
        self.mask_keys: dict[int, bytes] = {}

    def _sign(self, purpose: str, *fields: bytes) -> bytes:
        return self._identity.sign(purpose, *fields) if self._identity else b""

    def advert(self, invitation: bytes) -> Advert:
        vault = self._vault
        keys = (vault.channel_key(), vault.kem_key(), vault.mask_public_keys(), vault.commitments())
        body = Advert(self.member, *keys).body
        return Advert(self.member, *keys, self._sign("advert", invitation_digest(invitation), body))

    def deal(self, cohort: Cohort, around: Sequence[int] | None = None) -> Dealt:
        """What an honest client deals to all, or to those `around` it."""
        holders = cohort.ids if around is None else around
        texts = self._vault.deal(threshold=cohort.threshold, holders=len(holders))
        channel = self._channel(cohort)
        adverts = [cohort.adverts[cohort.position[holder]] for holder in holders]
        envelopes = tuple(
            channel.seal(text, receiver=advert)
            for advert, text in zip(adverts, texts, strict=True)
            if advert.member != self.member
        )
        tags = tuple(
            self._tags(cohort, text, dealer=self.member, holder=holder)
            for holder, text in zip(holders, texts, strict=True)
        )
        self.mask_keys = {k: self._vault.take_mask_secrets(k).mask_key for k in range(self._sums)}
        return Dealt(envelopes, self._sign("key list", cohort.session), tags)

    def _tags(self, cohort: Cohort, text: bytes, *, dealer: int, holder: int) -> bytes:
        return tags_of(text, session=cohort.session, dealer=dealer, holder=holder, sums=self._sums)

    def _channel(self, cohort: Cohort) -> EnvelopeCipher:
        return self._vault.channel(cohort.session)

    def open(self, cohort: Cohort, parcels: Iterable[Parcel]) -> None:
        """Read the envelopes that honest clients sealed for this member."""
        channel = self._channel(cohort)
        for parcel in parcels:
            text = channel.open(parcel.envelope, sender=cohort.adverts[cohort.position[parcel.sender]])
            assert text is not None  # it was sealed for us
            tags = self._tags(cohort, text, dealer=parcel.sender, holder=self.member)
            assert tags_digest(tags) == parcel.tags
            self._dealt[parcel.sender] = text

    def share(self, dealer: int, sum_index: int, *, alive: bool) -> int:
        """Of the dealer's self mask (`alive`) or of its mask key: a colluder has both."""
        return self.column(dealer, sum_index, 0 if alive else 1)

    def column(self, dealer: int, sum_index: int, column: int) -> int:
        """Of any secret of a sum, in the order in which they are dealt; seeds of noise come last."""
        start = sum_index * shares_bytes(self._seeds) + column * SHARE_BYTES
        return int.from_bytes(self._dealt[dealer][start : start + SHARE_BYTES], "big")

    def confirm(self, question: Question, survivors: tuple[int, ...]) -> bytes:
        """Its signature on a survivor set (positions), and on as many others as the server likes."""
        return self._sign("survivors", *question.confirmed_fields(survivors))


def set_up_with(
    rig: Rig,
    colluders: Iterable[Colluder],
    *,
    threshold: int,
    members: Iterable[int] | None = None,
) -> Cohort:
    """Set-up as an honest server would run it, among honest clients and colluders."""
    corrupt = tuple(colluders)
    invitation = rig.invitation()
    honest = rig.advertise(invitation, members)
    adverts = {**honest, **{colluder.member: colluder.advert(invitation) for colluder in corrupt}}
    return set_up_over(rig, invitation, adverts, corrupt, threshold=threshold)


def set_up_over(
    rig: Rig,
    invitation: bytes,
    adverts: Mapping[int, Advert],
    colluders: Iterable[Colluder],
    *,
    threshold: int,
) -> Cohort:
    """The rest of set-up, over a key list of the attacker's choice; who is no colluder is honest."""
    corrupt = {colluder.member: colluder for colluder in colluders}
    honest = [member for member in adverts if member not in corrupt]
    key_list = rig.key_list(invitation, adverts, threshold)
    cohort = rig.cohort(invitation, key_list, adverts, threshold)
    shares = {
        **{k: rig.share(k, key_list, cohort.size) for k in honest},
        **{k: colluder.deal(cohort) for k, colluder in corrupt.items()},
    }
    for member in honest:
        rig.send(member, rig.delivery(cohort, rig.parcels(cohort, shares, member)))
    for member, colluder in corrupt.items():
        dealt = [parcel for parcel in rig.parcels(cohort, shares, member) if parcel.sender in honest]
        colluder.open(cohort, dealt)
    return cohort

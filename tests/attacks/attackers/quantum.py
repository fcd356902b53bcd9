"""A server that computes discrete logarithms: years after a session, or with help in the midst of one.

It has every private key of X25519 in the session, and all that clients sent. What it has not are the private
keys of ML-KEM, and whatever clients never sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg import shamir
from secagg.cohort_members import Cohort
from secagg.hybrid_keys import (
    CIPHERTEXT_BYTES,
    DEPOSIT_BYTES,
    PAIR_SECRET_BYTES,
    KeyAgreement,
    mask_key_of,
    padded,
)
from secagg.keys import Agreement, envelope_info, pair_info
from secagg.mask_keystream import apply_masks
from secagg.messages import Deposit
from secagg.shamir import SHARE_BYTES
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Dealt, Rig

SUM = 0  # the one that is attacked


@dataclass(frozen=True)
class Recording:
    """What the adversary has of one session: all private keys of X25519 in it, and what was sent."""

    rig: Rig
    cohort: Cohort
    channels: Mapping[int, bytes]
    mask_keys: Mapping[int, bytes]
    dealt: Mapping[int, Dealt]
    deposits: Mapping[int, bytes]

    @classmethod
    def of(cls, rig: Rig, *, threshold: int, spoiled: Collection[tuple[int, int]] = ()) -> Recording:
        """Run set-up. The envelopes of each (sender, receiver) in `spoiled` do not open."""
        invitation = rig.invitation()
        adverts = rig.advertise(invitation)
        vaults = {k: machine._vault for k, machine in rig.machines.items()}
        channels = {k: vault._channel for k, vault in vaults.items()}
        mask_keys = {k: mask_key_of(v._mask_keys[SUM], KeyAgreement.HYBRID) for k, v in vaults.items()}
        key_list = rig.key_list(invitation, adverts, threshold)
        cohort = rig.cohort(invitation, key_list, adverts, threshold)
        dealt = {k: rig.share(k, key_list, cohort.size) for k in adverts}
        deposits = {}
        for member in adverts:
            parcels = rig.parcels(cohort, dealt, member)
            for at, each in enumerate(parcels):
                if (each.sender, member) in spoiled:
                    parcels[at] = replace(each, envelope=bytes(len(each.envelope)))
            for reply in rig.send(member, rig.delivery(cohort, parcels)):
                if isinstance(reply, Deposit):
                    deposits[member] = reply.deposits
        return cls(rig, cohort, channels, mask_keys, dealt, deposits)

    def masked_sum(self) -> CheatedSum:
        """A sum of all clients, as an honest server runs it."""
        query = self.rig.query(self.cohort, SUM, self.cohort.ids)
        done = CheatedSum(self.rig, self.cohort, query)
        done.ask(self.cohort.ids)
        done.reveal(self.cohort.ids, self.cohort.ids)
        return done

    # --- masks ---

    def without_masks(self, done: CheatedSum, victim: int, secrets: Mapping[int, bytes]) -> Vector:
        """The victim's input, without its self mask, which was revealed, and the pair masks that belong to
        `secrets`, by peer. Without a secret, X25519 has to do."""
        question = done.question
        self_mask = done.self_mask(victim)
        assert self_mask is not None
        residues = self.rig.residues(question, done.inputs[victim].data)
        self.rig.remove_self_mask(residues, question, victim, self_mask)
        agreement = Agreement(self.mask_keys[victim])
        for peer in self.cohort.ids:
            if peer != victim:
                key = self.cohort.adverts[self.cohort.position[peer]].mask_keys[SUM]
                info = pair_info(question.mask_context, victim, peer)
                more = secrets.get(peer, b"")
                seed = agreement.derive(key, salt=self.cohort.session, info=info, more=more)
                apply_masks(residues, plus=[seed] * (victim < peer), minus=[seed] * (victim > peer))
        return self.rig.vector(question, residues)

    # --- envelopes ---

    def opened(self, sender: int, receiver: int) -> bytes | None:
        """The shares in an envelope, if the secret of X25519 is enough to open it."""
        position = self.cohort.position
        envelope = self.dealt[sender].envelopes[position[receiver] - (receiver > sender)]
        ciphertext, sealed = envelope[:CIPHERTEXT_BYTES], envelope[CIPHERTEXT_BYTES:]
        session, info = self.cohort.session, envelope_info(sender, receiver)
        key = Agreement(self.channels[sender]).derive(
            self.cohort.adverts[position[receiver]].channel_key, salt=session, info=info + ciphertext
        )
        try:
            return AESGCM(key).decrypt(bytes(12), sealed, session + info)
        except InvalidTag:
            return None

    def dealt_secret(self, victim: int) -> bytes | None:
        """The dealt secret of the victim, from the shares in its envelopes."""
        points = {}
        for receiver in self.cohort.ids:
            plaintext = self.opened(victim, receiver) if receiver != victim else None
            if plaintext is not None:
                share = plaintext[SHARE_BYTES : 2 * SHARE_BYTES]  # column 1 of the first row
                points[self.cohort.position[receiver] + 1] = int.from_bytes(share, "big")
        if len(points) < self.cohort.threshold:
            return None
        chosen = sorted(points)[: self.cohort.threshold]
        return shamir.interpolate(shamir.lagrange_weights(chosen), [points[x] for x in chosen])

    def pair_secrets(self, victim: int, secret: bytes) -> dict[int, bytes]:
        """The pair secrets of the victim, from what it deposited, by its dealt secret."""
        peers = [peer for peer in self.cohort.ids if peer != victim]
        size = DEPOSIT_BYTES * self.rig.sums
        found = {}
        for at, peer in enumerate(peers):
            hidden = self.deposits[victim][at * size : at * size + PAIR_SECRET_BYTES]
            names = {"owner": victim, "peer": peer, "sum_index": SUM}
            found[peer] = padded(hidden, secret=secret, session=self.cohort.session, **names)
        return found

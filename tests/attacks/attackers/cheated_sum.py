"""One sum in the hands of a cheating server: whom it tells what, and what it can compute from the replies.

A masked input is `x + self mask + pair masks`. Whoever has a client's self-mask secret and its mask key
reads its vector. Whoever has the self-mask secrets of a set of clients, and the mask keys of everybody else
in the roster, reads the sum of that set. Every secret is interpolated from shares that machines really
revealed, and checked against what its owner published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg import messages as m
from secagg.bitmap import unpack_positions
from secagg.cohort_members import Cohort
from secagg.keys import public_key, seed_commitment
from secagg.message_records import encode_signatures
from secagg.residue_packing import Residues
from secagg.shamir import SHARE_BYTES
from secagg.topology import CompleteGraph, Graph
from secagg.trust_levels import Trust
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.rig import Rig

Vector: TypeAlias = NDArray[Any]


class CheatedSum:
    """The attacker's notes on one sum. All sets are ids. Clients share with everybody, or as in `graph`."""

    def __init__(
        self,
        rig: Rig,
        cohort: Cohort,
        query: bytes,
        colluders: Iterable[Colluder] = (),
        *,
        graph: Graph | None = None,
    ) -> None:
        self.rig = rig
        self.cohort = cohort
        self._graph = graph or CompleteGraph(cohort.size)
        self.query = query
        self.question = rig.question(cohort, query)
        self.inputs: dict[int, m.MaskedInput] = {}
        self.signatures: dict[bytes, dict[int, bytes]] = {}  # survivors -> signer -> signature
        self._colluders = {colluder.member: colluder for colluder in colluders}
        self._reveals: dict[tuple[int, bool], list[tuple[int, m.Reveal]]] = {}

    # --- talking to clients ---

    def ask(self, members: Iterable[int], vectors: Mapping[int, Vector] | None = None) -> None:
        """Send the query and take the masked inputs; `vectors` are the clients' answers to it."""
        for member in members:
            assert self.rig.send(member, self.query) == []
            values = None if vectors is None else vectors[member]
            self.inputs[member] = self.rig.answer(member, values)

    def tell(self, members: Iterable[int], survivors: Collection[int]) -> None:
        """Tell each of `members` that exactly `survivors` sent an input, and note what it replies."""
        frame = self.rig.survivors(self.cohort, self.question.sum_index, survivors)
        for member in members:
            self._note(member, survivors, self.rig.send(member, frame))

    def confirm(
        self,
        members: Iterable[int],
        survivors: Collection[int],
        signatures: Mapping[int, bytes] | None = None,
    ) -> None:
        """Show each of `members` signatures on the survivors: by default all there are, colluders' too."""
        shown = self.signatures_on(survivors) if signatures is None else signatures
        blob = encode_signatures(sorted(shown.items()))
        frame = m.Confirmations(self.cohort.session, self.question.sum_index, blob).encode()
        for member in members:
            self._note(member, survivors, self.rig.send(member, frame))

    def reveal(self, members: Collection[int], survivors: Collection[int]) -> None:
        """The whole way from the survivors to the shares, at either trust level."""
        self.tell(members, survivors)
        if self.rig.trust is Trust.MALICIOUS:
            self.confirm(members, survivors)

    def signatures_on(self, survivors: Collection[int]) -> dict[int, bytes]:
        positions = tuple(sorted(self.cohort.position[k] for k in survivors))
        corrupt = {
            k: colluder.confirm(self.question, positions)
            for k, colluder in self._colluders.items()
            if k in survivors
        }
        return {**self.signatures.get(self.rig.bitmap(self.cohort, survivors), {}), **corrupt}

    def _note(self, member: int, survivors: Collection[int], replies: Iterable[m.Message]) -> None:
        for message in replies:
            if isinstance(message, m.Confirmation):
                signed = self.signatures.setdefault(self.rig.bitmap(self.cohort, survivors), {})
                signed[member] = message.signature
            else:
                assert isinstance(message, m.Reveal)
                for dealer in self.cohort.ids:
                    found = self._reveals.setdefault((dealer, dealer in survivors), [])
                    found.append((member, message))

    # --- what can be computed ---

    def shares(self, dealer: int, *, alive: bool) -> dict[int, int]:
        """Point -> share of an honest dealer's self mask (`alive`) or mask key: all that was revealed."""
        found = {}
        for point, holder in enumerate(self._around(dealer), start=1):
            if holder in self._colluders:
                found[point] = self._colluders[holder].share(dealer, self.question.sum_index, alive=alive)
        for holder, reveal in self._reveals.get((dealer, alive), []):
            around = self._around(holder)
            places = unpack_positions(reveal.dealers, len(around), sender=holder)
            dealers = [around[place] for place in places]
            if dealer in dealers:
                at = dealers.index(dealer) * SHARE_BYTES
                share = int.from_bytes(reveal.shares[at : at + SHARE_BYTES], "big")
                found[self._around(dealer).index(holder) + 1] = share
        return found

    def self_mask(self, owner: int) -> bytes | None:
        """The secret of a client's self mask, if enough shares were revealed."""
        secret = self.rig.secret_of(self.cohort, self.shares(owner, alive=True))
        if secret is not None:
            published = self.cohort.adverts[self.cohort.position[owner]].commitments[self.question.sum_index]
            assert seed_commitment(secret, owner=owner, sum_index=self.question.sum_index) == published
        return secret

    def mask_key(self, owner: int) -> bytes | None:
        """A client's mask key of this sum: a colluder's own, or interpolated."""
        if owner in self._colluders:
            return self._colluders[owner].mask_keys[self.question.sum_index]
        secret = self.rig.secret_of(self.cohort, self.shares(owner, alive=False))
        if secret is not None:
            published = self.cohort.adverts[self.cohort.position[owner]].mask_keys[self.question.sum_index]
            assert public_key(secret) == published
        return secret

    def vector(self, owner: int, *, mask_key: bytes | None = None) -> Vector | None:
        """A client's private vector from both kinds of its shares, or with a `mask_key` had elsewhere."""
        self_mask, key = self.self_mask(owner), mask_key or self.mask_key(owner)
        if self_mask is None or key is None:
            return None
        residues = self.rig.residues(self.question, self.inputs[owner].data)
        self.rig.remove_self_mask(residues, self.question, owner, self_mask)
        self.rig.remove_pair_masks(residues, self.question, owner, key, self._peers(owner))
        return self.rig.vector(self.question, residues)

    def total(self, members: Collection[int]) -> Vector | None:
        """The sum of the inputs of `members`, or None where a secret for it is missing."""
        absent = {peer for k in members for peer in self._peers(k) if peer not in members}
        self_masks = {k: secret for k in members if (secret := self.self_mask(k))}
        mask_keys = {k: key for k in absent if (key := self.mask_key(k))}
        if len(self_masks) < len(members) or len(mask_keys) < len(absent):
            return None
        total = list(self.question.encoding.zeros())
        for member, secret in self_masks.items():
            _add(total, self.rig.residues(self.question, self.inputs[member].data))
            self.rig.remove_self_mask(total, self.question, member, secret)
        for member, key in mask_keys.items():
            peers = [peer for peer in self._peers(member) if peer in members]
            _add(total, self._masked_zeros(member, key, peers))
        return self.rig.vector(self.question, total)

    def _masked_zeros(self, owner: int, key: bytes, peers: Iterable[int]) -> list[Residues]:
        """What is missing for the masks of `peers` to cancel: zeros under the masks of one who is absent."""
        residues = list(self.question.encoding.zeros())
        self.rig.remove_pair_masks(residues, self.question, owner, key, peers)
        return [np.negative(part) for part in residues]

    def _around(self, member: int) -> list[int]:
        """A client and those who share with it, in the order of its shares."""
        around = self._graph.neighbourhood(self.cohort.position[member])
        return [self.cohort.ids[position] for position in around]

    def _peers(self, member: int) -> list[int]:
        """Those with whom a client of the roster shares masks, itself included."""
        return [peer for peer in self._around(member) if self.cohort.position[peer] in self.question.roster]


def _add(total: list[Residues], residues: Iterable[Residues]) -> None:
    for part, more in zip(total, residues, strict=True):
        part += more

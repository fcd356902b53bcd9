"""Key substitution: the server puts keys of its own where a client's belong.

Shown to one client alone, it is a man in the middle between the client and all its peers. Shown to
everybody, it leaves the shares intact and reads every mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from secagg.insecure_seeds import SeededRandom
from secagg.keys import Agreement, pair_info, public_key
from secagg.mask_keystream import apply_masks
from secagg.residue_packing import Residues
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import set_up_over
from tests.attacks.attackers.siege import Impostor, besiege
from tests.attacks.rig import Rig


def remove_pair_mask(residues: Sequence[Residues], *, owner: int, peer: int, seed: bytes) -> None:
    """Take from the residues of `owner` the one mask it shares with `peer`."""
    apply_masks(residues, plus=[seed] if owner < peer else [], minus=[seed] if owner > peer else [])


def substitute_peers(rig: Rig, victim: int, *, threshold: int) -> Vector:
    """The vector of `victim`, to whom the server impersonates every other client."""
    impostors = [Impostor(rig, member) for member in range(rig.clients) if member != victim]
    return besiege(rig, victim, impostors, threshold=threshold)


def substitute_everyone(rig: Rig, *, threshold: int) -> dict[int, Vector]:
    """Everybody's vector, from one key list in which all mask keys are the server's.

    All see the same list, so envelopes open and self masks are revealed as in any honest sum.
    """
    invitation = rig.invitation()
    honest = rig.advertise(invitation)
    random = SeededRandom(b"substitute")
    planted = {k: tuple(random(32) for _ in range(rig.sums)) for k in honest}
    adverts = {
        k: replace(advert, mask_keys=tuple(map(public_key, planted[k]))) for k, advert in honest.items()
    }
    cohort = set_up_over(rig, invitation, adverts, (), threshold=threshold)
    cheat = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheat.ask(cohort.ids)
    cheat.reveal(cohort.ids, cohort.ids)
    return {k: _read(cheat, k, honest[k].mask_keys[0], {p: planted[p][0] for p in honest}) for k in honest}


def _read(cheat: CheatedSum, owner: int, own_key: bytes, planted: dict[int, bytes]) -> Vector:
    """The vector of `owner`, whose true mask key agreed with planted ones."""
    rig, question = cheat.rig, cheat.question
    residues = rig.residues(question, cheat.inputs[owner].data)
    secret = cheat.self_mask(owner)
    assert secret is not None  # everybody revealed
    rig.remove_self_mask(residues, question, owner, secret)
    for peer in set(planted) - {owner}:
        info = pair_info(question.mask_context, owner, peer)
        seed = Agreement(planted[peer]).derive(own_key, salt=question.cohort.session, info=info)
        remove_pair_mask(residues, owner=owner, peer=peer, seed=seed)
    return rig.vector(question, residues)

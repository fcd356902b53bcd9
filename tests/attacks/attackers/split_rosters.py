"""Split rosters: the victim is told that the sum is over few, the others that it is over many.

The few are then called dead before enough of the others, in turn: their mask keys undo all the masks that
the victim has, and its self mask is revealed by everybody. Each client sees a roster, and survivors, as large
as it insists on; no two of them see the same. (That masks are bound to the roster does not help
here, because the server learns keys rather than waits for masks to cancel: what helps is that survivors sign
the query, roster and survivor set they saw.)
"""

from __future__ import annotations

from collections.abc import Mapping

from secagg.keys import Agreement, pair_info
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.substitution import remove_pair_mask
from tests.attacks.rig import Rig


def split_rosters(rig: Rig) -> Vector:
    """The vector of client 0 of five, with a threshold of three and no colluder at all."""
    cohort = rig.set_up(threshold=3)
    narrow = CheatedSum(rig, cohort, rig.query(cohort, 0, (0, 1, 2)))
    wide = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    narrow.ask([0])
    wide.ask((1, 2, 3, 4))
    # Clients 1 and 2 are each called dead by the other and by both 3 and 4; all call 0 alive.
    views = {1: (0, 1, 3), 2: (0, 2, 3), 3: (0, 3, 4), 4: (0, 3, 4)}
    narrow.tell([0], (0, 1, 2))
    for member, survivors in views.items():
        wide.tell([member], survivors)
    if rig.trust is Trust.MALICIOUS:
        _confirm(narrow, wide, views)
    return _read(narrow, wide)


def _confirm(narrow: CheatedSum, wide: CheatedSum, views: Mapping[int, tuple[int, ...]]) -> None:
    """Show each of the others the signatures of its survivors, whatever they are on."""
    rows = (*narrow.signatures.values(), *wide.signatures.values())
    signed = {member: signature for row in rows for member, signature in row.items()}
    for member, survivors in views.items():
        wide.confirm([member], survivors, {k: signed[k] for k in survivors})


def _read(narrow: CheatedSum, wide: CheatedSum) -> Vector:
    rig, question = narrow.rig, narrow.question
    residues = rig.residues(question, narrow.inputs[0].data)
    self_mask = wide.self_mask(0)
    assert self_mask is not None  # four clients revealed it
    rig.remove_self_mask(residues, question, 0, self_mask)
    for peer in (1, 2):
        mask_key = wide.mask_key(peer)
        assert mask_key is not None  # three clients revealed it
        own_key = question.cohort.adverts[0].mask_keys[0]
        info = pair_info(question.mask_context, 0, peer)
        seed = Agreement(mask_key).derive(own_key, salt=question.cohort.session, info=info)
        remove_pair_mask(residues, owner=0, peer=peer, seed=seed)
    return rig.vector(question, residues)

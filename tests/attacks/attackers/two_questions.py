"""Two questions: the target is asked what the server wants to know, everybody else something harmless.

If the masks cancel all the same, the total is the target's vector plus known ones. With two models it is the
model-inconsistency attack (Pasquini, Francati and Ateniese, Eluding Secure Aggregation in Federated
Learning via Model Inconsistency, 2022): a model with dead units has an update of zero.
"""

from __future__ import annotations

import numpy as np

from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import KIND, PART, Rig


class TwoQuestions:
    """A sum in which `target` sees one (kind, payload) and all others, who answer zeros, see another.

    The consistency round does not prevent it: the others agree among themselves, they are a quorum, and the
    target is not asked.
    """

    def __init__(
        self,
        rig: Rig,
        target: int,
        *,
        threshold: int,
        bait: tuple[str, bytes] = (KIND, b"live model"),
        decoy: tuple[str, bytes] = (KIND, b"dead model"),
    ) -> None:
        cohort = rig.set_up(threshold=threshold)
        self._everyone = cohort.ids
        self._target = target
        self._others = [member for member in cohort.ids if member != target]
        self._bait, self._decoy = (
            CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids, kind=kind, payload=payload))
            for kind, payload in (bait, decoy)
        )
        zeros = np.zeros_like(rig.vectors[target])
        self._bait.ask([target])
        self._decoy.ask(self._others, dict.fromkeys(self._others, zeros))

    def total(self) -> Vector:
        """The sum over everybody, unmasked by the others. Raises `CorruptTotal` if masks did not cancel."""
        self._decoy.reveal(self._others, self._everyone)
        rig, encoding = self._bait.rig, self._bait.question.encoding
        total = encoding.zeros()
        for member in self._everyone:
            cheat = self._bait if member == self._target else self._decoy
            secret = self._decoy.self_mask(member)
            assert secret is not None  # a quorum revealed
            masked = rig.residues(cheat.question, cheat.inputs[member].data)
            for part, more in zip(total, masked, strict=True):
                part += more
            rig.remove_self_mask(total, cheat.question, member, secret)
        size = len(self._everyone)
        return encoding.decode(total, contributors=size, invited=size)[PART]

    def confirm_to_target(self) -> None:
        """Show the target what the others signed, for its shares too. Under `malicious_server` only."""
        self._decoy.tell(self._others, self._everyone)
        self._bait.tell([self._target], self._everyone)
        self._bait.confirm([self._target], self._everyone, self._decoy.signatures_on(self._everyone))

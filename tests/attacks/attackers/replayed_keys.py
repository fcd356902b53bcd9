"""Replayed key lists: an earlier session's adverts, shown to a client in a new session.

The server repeats its nonce, so the signatures on old adverts are good again. If the one-time secrets behind
them have leaked since (a core dump, a snapshot of a virtual machine, a weak random source), the client would
agree on masks, and share its secrets, with the server. An old advert cannot sign the new session id,
which holds the victim's fresh keys.
"""

from __future__ import annotations

from secagg.insecure_seeds import SeededRandom
from secagg.keys import KEY_BYTES
from secagg.message_records import Advert
from secagg.session_secrets import Vault
from tests.attacks.attackers.cheated_sum import Vector
from tests.attacks.attackers.siege import Impostor, besiege
from tests.attacks.rig import Rig


class Ghost(Impostor):
    """A member of an earlier session whose one-time secrets leaked, but not its identity."""

    def __init__(self, rig: Rig, old: Advert, *, leaked_seed: bytes) -> None:
        super().__init__(rig, old.member)
        random = SeededRandom(leaked_seed, b"client", old.member.to_bytes(4, "big"))
        random(KEY_BYTES)  # what a machine draws for its empty vault, before any invitation
        self._vault = Vault(owner=old.member, sums=rig.sums, random=random)
        self._old = old

    def advert(self, invitation: bytes) -> Advert:
        """The old one: its signature holds for as long as the invitation is the same."""
        return self._old


def replay_key_list(rig: Rig, victim: int, *, threshold: int) -> Vector:
    """The vector that `victim` sends in its second session, whose other members are replayed."""
    first = rig.set_up(threshold=threshold)
    rig.restart(seed=b"second session")
    ghosts = [Ghost(rig, old, leaked_seed=rig.seed) for old in first.adverts if old.member != victim]
    return besiege(rig, victim, ghosts, threshold=threshold)

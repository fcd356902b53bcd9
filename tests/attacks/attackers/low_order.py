"""Low-order keys: points on which every X25519 agreement is the same constant.

Whoever agrees with such a point shares its secret with the whole world: the server needs no key of its own
to read the envelopes and masks of a client whose peers have them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.cohort_members import Cohort
from secagg.events import ClientStep
from secagg.keys import Agreement, hkdf, pair_info
from secagg.message_records import Advert, Format, parse_advert
from secagg.share_envelopes import EnvelopeCipher
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.attackers.substitution import remove_pair_mask
from tests.attacks.rig import Rig

_P: Final = (1 << 255) - 19
_TOP_BIT: Final = 1 << 255  # which X25519 ignores
_POINTS: Final = (
    0,
    1,
    _P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    _P,
    _P + 1,
)
# Seven encodings of five points, and the same again with the bit that does not count.
LOW_ORDER_KEYS: Final = tuple(
    point.to_bytes(32, "little") for top in (0, _TOP_BIT) for point in (top + point for point in _POINTS)
)


class ConstantAgreement(Agreement):
    """What agreement with a point of low order comes to: a shared secret of 32 zero bytes."""

    def derive(self, peer_key: bytes, *, salt: bytes, info: bytes, more: bytes = b"") -> bytes:
        return hkdf(bytes(32) + more, salt=salt, info=info)


class LowOrderColluder(Colluder):
    """A peer of no secrets: all its public keys are of low order."""

    def __init__(self, rig: Rig, member: int, keys: tuple[bytes, ...]) -> None:
        super().__init__(rig, member)
        self._keys = keys

    def advert(self, invitation: bytes) -> Advert:
        channel_key, *mask_keys = self._keys
        return replace(super().advert(invitation), channel_key=channel_key, mask_keys=tuple(mask_keys))

    def _channel(self, cohort: Cohort) -> EnvelopeCipher:
        channel = super()._channel(cohort)
        channel._agreement = ConstantAgreement(bytes(32))
        return channel


def plant_low_order_keys(rig: Rig, victim: int, *, threshold: int) -> Vector:
    """The vector of `victim`, all of whose peers have keys of low order. Not for signed sessions."""
    each = 1 + rig.sums
    peers = [member for member in range(rig.clients) if member != victim]
    keys = {peer: LOW_ORDER_KEYS[k * each : (k + 1) * each] for k, peer in enumerate(peers)}
    colluders = [LowOrderColluder(rig, peer, keys[peer]) for peer in peers]
    cohort = set_up_with(rig, colluders, threshold=threshold, members=[victim])
    cheat = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids), colluders)
    cheat.ask([victim])
    secret = cheat.self_mask(victim)
    assert secret is not None  # its shares were sealed under constants
    residues = rig.residues(cheat.question, cheat.inputs[victim].data)
    rig.remove_self_mask(residues, cheat.question, victim, secret)
    for peer in peers:
        info = pair_info(cheat.question.mask_context, victim, peer)
        seed = hkdf(bytes(32), salt=cohort.session, info=info)
        remove_pair_mask(residues, owner=victim, peer=peer, seed=seed)
    return rig.vector(cheat.question, residues)


class LowOrderClient(ClientMachine):
    """A client that advertises a channel key of low order: every honest peer would refuse the list."""

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        message = m.decode(step.frames[0], sender=self.member, limit=1 << 30)
        assert isinstance(message, m.Advertisement)  # a server that looks at keys lets it get no further
        form = Format(self._policy.max_sums, signed=False)
        advert = parse_advert(message.advert, form, sender=self.member)
        spoiled = replace(advert, channel_key=LOW_ORDER_KEYS[0])
        return ClientStep((m.Advertisement(message.context, spoiled.encode()).encode(),), step.events)

"""Adds up answers of clients without protection, encoded as integers, in one place or in several.

Every place adds the answers of its own clients modulo a power of two, which is exact. So the total of these
partial sums has the same bits as a sum in one place.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from secagg.hashing import digest
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import insecure_rounding
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.residue_packing import Residues
from secagg.sum_spec import SumSpec, Total
from sims.runtime.residue_tampering import Tamper, tampered


@dataclass(frozen=True)
class EncodedSum:
    """What the encoding of all answers to one query depends on, apart from its spec.

    `content`   digest of the query.
    `cohort`    clients of the session, and `roster`, those that are asked.
    `rotation`  seed of the random rotation that spreads the values of some specs.
    `seed`      determines rounding and noise; None if they are random.
    """

    kind: str
    content: bytes
    cohort: int
    roster: int
    rotation: bytes
    seed: bytes | None

    @classmethod
    def of(cls, kind: str, content: bytes, *, cohort: int, roster: int, seed: bytes | None) -> EncodedSum:
        rotation = secrets.token_bytes(SEED_BYTES) if seed is None else digest("rotation", seed)
        return cls(kind, content, cohort, roster, rotation, seed)


@dataclass(frozen=True)
class PartialSum:
    """The sum of the encoded answers of some clients, and the seeds of each one's noise, by client id."""

    residues: tuple[Residues, ...] = field(repr=False)
    noise: Mapping[int, list[bytes]] = field(repr=False)


class Addition:
    """The sum so far of encoded answers. `noise` has the seeds of the noise by client id, for everyone whose
    answer was added. `tamper` has functions of attackers that replace their encoded answers."""

    def __init__(self, spec: SumSpec, encoded: EncodedSum, tamper: Mapping[int, Tamper]) -> None:
        self._spec = spec
        self._sum = encoded
        self._tamper = tamper
        self._encoding = Encoding(
            spec, cohort=encoded.cohort, roster=encoded.roster, rotation=encoded.rotation
        )
        self._accumulator = self._encoding.zeros()
        self.noise: dict[int, list[bytes]] = {}

    def add(self, member: int, values: Mapping[str, Any]) -> None:
        """Add the values of one client, encoded as a real client would encode them."""
        seed, content = self._sum.seed, self._sum.content
        if seed is None:
            stream, own = KeyStream(secrets.token_bytes(SEED_BYTES)), secrets.token_bytes(SEED_BYTES)
        else:
            stream = insecure_rounding(seed, member, content)
            own = digest("insecure noise", seed, member.to_bytes(4, "big"), content)
        seeds = [digest("layer", own, bytes([layer])) for layer in range(self._spec.seeds)]
        encoded = self._encoding.encode(values, stream, noise=[KeyStream(each) for each in seeds])
        sent = encoded.residues
        if (tamper := self._tamper.get(member)) is not None:
            sent = tampered(tamper, self._sum.kind, self._encoding, sent)
        self._add(sent)
        self.noise[member] = seeds

    def merge(self, partial: PartialSum) -> None:
        """Add a sum that was computed elsewhere, over other clients."""
        self._add(partial.residues)
        self.noise.update(partial.noise)

    def partial(self) -> PartialSum:
        return PartialSum(tuple(self._accumulator), self.noise)

    def _add(self, residues: tuple[Residues, ...]) -> None:
        for part, more in zip(self._accumulator, residues, strict=True):
            part += more

    def total(self) -> Total:
        """Return the total, without the surplus noise that clients added in case more of them dropped out."""
        promise, layers, roster = self._spec.promise, self._encoding.noise(), self._sum.roster
        surplus = promise.surplus(roster, len(self.noise)) if promise is not None else ()
        for seeds in self.noise.values():
            for layer in surplus:
                layers.remove(layer, self._accumulator, KeyStream(seeds[layer - 1]))
        return self._encoding.decode(self._accumulator, contributors=len(self.noise), invited=roster)

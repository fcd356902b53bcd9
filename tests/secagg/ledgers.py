"""What the tests of ledgers share: entries to make, and bytes to alter."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from secagg.client_memory import AnswerEntry, SumFacts
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.ledger import ClientLedger
from secagg.noise.zcdp_cost import Adjacency
from secagg.sum_spec import L2, Count, Part, Residue, SumSpec

SESSION = b"s" * 32
QUERY = b"f" * 32
NOISY = SumSpec(
    parts=(
        Part(
            name="loss",
            size=4,
            bits=20,
            bound=Count(1, total=1),
            noise=Noise(scale=8, variance=Fraction(900)),
        ),
        Part(
            name="update", size=5, bits=24, bound=L2(1.5), noise=Noise(scale=16, variance=Fraction(5001, 2))
        ),
    ),
    promise=NoiseAssumptions(clients=10, dropouts=2, colluders=1, removable=True),
)
PLAIN = SumSpec(parts=(Part(name="parity", size=2, bits=3, bound=Residue()),))


def facts(spec: SumSpec = PLAIN, *, sum_index: int = 0) -> SumFacts:
    return SumFacts(
        session=SESSION,
        sum_index=sum_index,
        kind="vector",
        query=QUERY,
        spec=spec,
        cohort=9,
        roster=8,
    )


def answer(
    number: int,
    *,
    charge: int | None = 5,
    group: str = "g",
    spec: SumSpec = PLAIN,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> AnswerEntry:
    return AnswerEntry(
        group=group,
        round_number=number,
        content=number.to_bytes(32, "big"),
        charge=charge,
        adjacency=adjacency,
        facts=facts(spec, sum_index=number),
    )


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def reopened(path: Path, member: int = 5) -> ClientLedger:
    return ClientLedger.open(path, member=member)

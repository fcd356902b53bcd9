"""A run to be killed at any moment: sessions of noisy sums whose clients and server keep ledgers.

    python -m tests.sims.ledger_run FOLDER [SUMS]

It says `ready` before it opens a ledger, and `released <round>` as soon as a total was handed over. Without
SUMS, it goes on until it is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from itertools import count, islice
from pathlib import Path
from typing import Final

import numpy as np

from secagg.client_budget import sum_charge
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.events import Asked
from secagg.ledger import ClientLedger, ServerLedger
from secagg.local_session import LocalSession, local_machines
from secagg.noise.zcdp_cost import Adjacency
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust

MEMBERS = range(6)
KIND = "histogram"
SPEC = SumSpec(
    parts=(
        Part(
            name=KIND,
            size=4,
            bits=24,
            bound=Count(1, total=1),
            noise=Noise(scale=16, variance=Fraction(2560)),
        ),
    ),
    promise=NoiseAssumptions(clients=len(MEMBERS), dropouts=1, colluders=1),
)
TABLE = Table({KIND: SPEC})
SUMS = 3  # of a session
CHARGE: Final = sum_charge(SPEC, roster=len(MEMBERS), adjacency=Adjacency.ZERO_OUT) or 0


def client_ledger(folder: Path, member: int) -> ClientLedger:
    path = folder / f"client-{member}"
    return (
        ClientLedger.open(path, member=member) if path.exists() else ClientLedger.create(path, member=member)
    )


def server_ledger(folder: Path) -> ServerLedger:
    path = folder / "server"
    return ServerLedger.open(path) if path.exists() else ServerLedger.create(path)


def vote(member: int, asked: Asked) -> dict[str, np.ndarray]:
    return {KIND: np.eye(4, dtype=np.uint64)[(member + asked.round) % 4]}


def rounds(server: ServerLedger, clients: dict[int, ClientLedger], first: int) -> Iterator[int]:
    """Sum after sum, session after session, from round `first` on; yields rounds that were released."""
    for start in count(first, SUMS):
        machine, machines = local_machines(
            table=TABLE,
            params=SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=Fraction(1, 6), sums=SUMS),
            members=MEMBERS,
            memories=clients,
        )
        session = LocalSession(machine, machines, vote, ledger=server)
        session.open()
        for number in range(start, start + SUMS):
            session.ask(KIND, number.to_bytes(8, "big"), round_number=number)
            yield number
        session.end()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: Path, sums: int | None) -> None:
    say("ready")
    with ExitStack() as stack:
        server = stack.enter_context(server_ledger(folder))
        clients = {k: stack.enter_context(client_ledger(folder, k)) for k in MEMBERS}
        first = 1 + max(ledger.last_round(KIND) for ledger in clients.values())
        for number in islice(rounds(server, clients, first), sums):
            say(f"released {number}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)

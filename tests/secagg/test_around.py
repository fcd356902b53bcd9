"""A server knows around whom so many dealt, were asked and survived: messages are as long as that says."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from secagg.events import Asked, SessionReady
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.message_records import Format
from secagg.messages import Delivery, Deposit, MaskedInput, Reveal, decode
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import COUNT_BYTES, L2, Part, SumSpec, Table
from secagg.trust_levels import Trust

SPEC = SumSpec(parts=(Part(name="x", size=2, bits=32, bound=L2(1.0)),), times=2)
TABLE = Table({"x": SPEC})
SIZE = 40


@pytest.mark.parametrize("graph", [GraphChoice.COMPLETE, GraphChoice.RING])
def test_the_shares_of_reveals_are_counted_by_who_is_around(graph: GraphChoice) -> None:
    frames: list[bytes] = []
    server, clients = local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0.2, sums=2, graph=graph),
        members=range(SIZE),
    )

    def absent(member: int, stage: Stage, sum_index: int) -> bool:
        missing = {(Stage.MASK, 0): range(5), (Stage.REVEAL, 1): range(5, 9)}
        return member in missing.get((stage, sum_index), ())

    def answer(_member: int, _asked: Asked) -> dict[str, np.ndarray]:
        return {"x": np.ones(2) / 2}

    session = LocalSession(
        server, clients, answer, absent=absent, observer=lambda _sender, frame: frames.append(frame)
    )
    session.open()
    for number in range(2):  # the second one is over the survivors of the first
        frames.clear()
        assert session.ask("x", bytes([number])).count == SIZE - 5
        sent = [decode(frame, sender=0, limit=1 << 20) for frame in frames]
        shares = Counter(len(each.shares) // SHARE_BYTES for each in sent if isinstance(each, Reveal))
        words = Counter(len(each.words) // COUNT_BYTES for each in sent if isinstance(each, MaskedInput))

        asked: Counter[int] = Counter()
        revealed: Counter[int] = Counter()
        for (around, _survived, reveals), often in server.around.items():
            asked[around - 1] += often
            revealed[around] += often * reveals
        assert asked == words
        assert +revealed == shares
        assert sum(shares.values()) == SIZE - (5 if number == 0 else 9)
        assert all(survived <= around for around, survived, _ in server.around)
        assert (len({each[:2] for each in server.around}) > 1) == (graph == "ring")
    assert all(around == survived for around, survived, _ in server.around)


@pytest.mark.parametrize("graph", [GraphChoice.COMPLETE, GraphChoice.RING])
@pytest.mark.parametrize("agreement", KeyAgreement)
def test_parcels_and_deposits_are_counted_by_who_dealt(graph: GraphChoice, agreement: KeyAgreement) -> None:
    """Some deal no shares, some receive theirs and make no deposit."""
    terms: dict[str, Any] = {"corrupt": 1, "dropout": 0.2, "graph": graph, "key_agreement": agreement}
    server, clients = local_machines(
        table=TABLE, params=SessionParams(trust=Trust.CURIOUS, **terms), members=range(SIZE)
    )
    parcels: Counter[int] = Counter()
    deposits: Counter[int] = Counter()
    form = Format(1, signed=False, agreement=agreement)

    def absent(member: int, stage: Stage, _sum_index: int) -> bool:
        return (stage is Stage.SHARE and member < 3) or (stage is Stage.DEPOSIT and 5 <= member < 7)

    def count(_sender: int, frame: bytes) -> None:
        message = decode(frame, sender=0, limit=1 << 20)
        if isinstance(message, Deposit):
            deposits[len(message.deposits) // form.deposit_bytes] += 1

    deliveries = server._admission.deliveries

    def observed(*given: Any) -> Any:
        frames = deliveries(*given)
        for packet in frames:
            message = decode(packet.frame, sender=0, limit=1 << 20)
            assert isinstance(message, Delivery)
            parcels[len(message.parcels) // form.parcel_bytes] += 1
        return frames

    with patch.object(server._admission, "deliveries", observed):
        session = LocalSession(server, clients, lambda *_: None, absent=absent, observer=count)
        session.open()
    (ready,) = [event for event in session.events if isinstance(event, SessionReady)]
    sent: Counter[int] = Counter()
    made: Counter[int] = Counter()
    for (dealt, deposited), often in ready.exchanged.items():
        sent[dealt] += often
        made[dealt] += often * deposited
    assert sent == parcels
    assert +made == deposits
    assert sum(made.values()) == (SIZE - 5 if agreement is KeyAgreement.HYBRID else 0)
    assert (len(sent) > 1) == (graph == "ring")

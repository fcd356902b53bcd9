"""A server knows around whom so many were asked and survived: what clients reveal is as long as that says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from secagg.events import Asked
from secagg.graph_parameters import GraphChoice
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.messages import Reveal, decode
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import L2, Part, SumSpec, Table
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
        return (stage, sum_index) == (Stage.MASK, 0) and member < 5

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

        asked: Counter[int] = Counter()
        for (around, _survived), often in server.around.items():
            asked[around] += often
        assert asked == shares
        assert all(survived <= around for around, survived in server.around)
        assert (len(server.around) > 1) == (graph == "ring")
    assert all(around == survived for around, survived in server.around)

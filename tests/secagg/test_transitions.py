"""The tables of moves: every pair of state and message is either in them or refused."""

from __future__ import annotations

from typing import Any

import pytest

from secagg import messages as m
from secagg.errors import OutOfOrder
from secagg.transitions import (
    CLIENT_MOVES,
    COLLECTED,
    ClientState,
    ServerState,
    check_collected,
    is_late,
    next_state,
)
from secagg.trust_levels import Trust

C, S = ClientState, ServerState
LIVE = [C.ADVERTISED, C.SHARED, C.READY, C.ASKED, C.MASKED]


def sample(kind: type[m.Message], sum_index: int = 2) -> m.Message:
    """The smallest message of a kind."""
    smallest: dict[type, Any] = {m.Uint: 0, m.Text: "a"}
    values = [
        bytes(field.lengths[0]) if isinstance(field, m.Blob) else smallest[type(field)]
        for field in kind.SCHEMA
    ]
    if "sum_index" in kind.__dataclass_fields__:
        values[1] = sum_index
    return kind(*values)


EVERY_KIND = pytest.mark.parametrize("kind", [*m.FROM_SERVER, *m.FROM_CLIENT], ids=lambda kind: kind.__name__)


def legal(trust: Trust) -> dict[tuple[ClientState, type[m.Message]], ClientState]:
    """The same table once more, by hand and the other way round: message by message."""
    live = [*LIVE, C.SIGNED] if trust is Trust.MALICIOUS else LIVE
    in_sum = [state for state in live if state not in (C.ADVERTISED, C.SHARED)]
    moves: dict[tuple[ClientState, type[m.Message]], ClientState] = {
        (C.NEW, m.Invitation): C.ADVERTISED,
        (C.ADVERTISED, m.KeyList): C.SHARED,
        (C.SHARED, m.Delivery): C.READY,
        (C.MASKED, m.Survivors): C.SIGNED if trust is Trust.MALICIOUS else C.READY,
    }
    moves |= {(state, m.Query): C.ASKED for state in in_sum}
    moves |= {(state, m.GroupClosed): C.READY for state in in_sum}
    moves |= {(state, m.Farewell): C.ENDED for state in live}
    if trust is Trust.MALICIOUS:
        moves[C.SIGNED, m.Confirmations] = C.READY
    else:
        moves[C.ADVERTISED, m.Neighbours] = C.SHARED
    return moves


@EVERY_KIND
@pytest.mark.parametrize("state", list(ClientState))
@pytest.mark.parametrize("trust", list(Trust))
def test_a_clients_move_is_legal_or_refused(trust: Trust, state: ClientState, kind: type[m.Message]) -> None:
    target = legal(trust).get((state, kind))
    if target is not None:
        assert next_state(trust, state, sample(kind)) is target
        return
    why = f"server: {kind.__name__} to a client that is {state.value}"
    with pytest.raises(OutOfOrder, match=why):
        next_state(trust, state, sample(kind))


@pytest.mark.parametrize("trust", list(Trust))
def test_nothing_leads_out_of_the_end(trust: Trust) -> None:
    assert not {state for state, _ in CLIENT_MOVES[trust]} & {C.ENDED, C.FAILED}
    assert C.FAILED not in CLIENT_MOVES[trust].values()  # only an error leads there


def test_a_second_survivor_list_is_never_legal() -> None:
    for trust in Trust:
        after = next_state(trust, C.MASKED, sample(m.Survivors))
        with pytest.raises(OutOfOrder):
            next_state(trust, after, sample(m.Survivors))


# --- the server's stages ---------------------------------------------------------------------------


STAGE_OF: dict[type[m.Message], ServerState] = {
    m.Advertisement: S.INVITING,
    m.Shares: S.SHARING,
    m.Deposit: S.DEPOSITING,
    m.MaskedInput: S.MASKING,
    m.Decline: S.MASKING,
    m.Confirmation: S.CONFIRMING,
    m.Reveal: S.UNMASKING,
}
ORDER = [S.INVITING, S.SHARING, S.DEPOSITING, S.MASKING, S.CONFIRMING, S.UNMASKING]


def test_stages_collect_one_message_each_in_order() -> None:
    assert list(COLLECTED) == ORDER
    assert {kind: stage for stage, kind in COLLECTED.items()} | {m.Decline: S.MASKING} == STAGE_OF


@EVERY_KIND
@pytest.mark.parametrize("state", list(ServerState))
@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_clients_message_is_in_turn_late_or_refused(
    state: ServerState, kind: type[m.Message], index: int
) -> None:
    """During sum 2. Late means for a stage that is over; then it is ignored, and nobody is to blame."""
    message, stage = sample(kind, index), STAGE_OF.get(kind)
    numbered = hasattr(message, "sum_index")
    in_turn = stage is state and not (numbered and index != 2)
    if in_turn:
        check_collected(state, 2, message, sender=4)
    else:
        with pytest.raises(OutOfOrder, match=f"client 4: {kind.__name__} while {state.value}"):
            check_collected(state, 2, message, sender=4)
    assert is_late(state, 2, message) == late(state, stage, index if numbered else 2)
    assert not (in_turn and is_late(state, 2, message))


def late(state: ServerState, stage: ServerState | None, index: int) -> bool:
    if stage is None:
        return False
    if index != 2:
        return index < 2
    return state not in ORDER or ORDER.index(stage) < ORDER.index(state)

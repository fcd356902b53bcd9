"""The transition tables of both state machines. A client's table maps (state, message) to the next state;
other messages are refused. Only under `curious_server` may the graph be a ring (message `Neighbours`). Only
under `malicious_server` do clients sign the set of survivors. To answer, decline, leave or fail also changes
a client's state. The server's table maps each stage to the message that it collects, besides `Decline`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Final, TypeAlias

from secagg import messages as m
from secagg.errors import SERVER, OutOfOrder, SecaggError
from secagg.trust_levels import Trust


class ClientState(Enum):
    """The state of a `ClientMachine`. Its value is the name that the documentation uses."""

    NEW = "new"
    ADVERTISED = "advertised"  # keys sent, waiting for those of the others
    SHARED = "shared"  # shares sent, waiting for those of the others
    READY = "ready"  # between sums
    ASKED = "asked"  # a query arrived, waiting for the caller's values
    MASKED = "masked"  # input sent, waiting for the survivors
    SIGNED = "signed"  # survivors signed, waiting for the others' signatures
    ENDED = "ended"
    FAILED = "failed"


class ServerState(Enum):
    """The state of a `ServerMachine`. Those in `COLLECTED` are stages, which collect messages of clients."""

    INVITING = "inviting"
    SHARING = "sharing"
    DEPOSITING = "depositing"  # only with hybrid key agreement
    READY = "ready"
    MASKING = "masking"
    CONFIRMING = "confirming"
    UNMASKING = "unmasking"
    ENDED = "ended"
    FAILED = "failed"


ClientMoves: TypeAlias = Mapping[tuple[ClientState, type[m.Message]], ClientState]

_C: Final = ClientState
_COMMON: Final[ClientMoves] = {
    (_C.NEW, m.Invitation): _C.ADVERTISED,
    (_C.ADVERTISED, m.KeyList): _C.SHARED,
    (_C.SHARED, m.Delivery): _C.READY,
    (_C.READY, m.Query): _C.ASKED,
    # If a client was too slow for a sum, the server goes on, and the query of the next sum arrives.
    (_C.ASKED, m.Query): _C.ASKED,
    (_C.MASKED, m.Query): _C.ASKED,
    (_C.READY, m.GroupClosed): _C.READY,
    (_C.ASKED, m.GroupClosed): _C.READY,
    (_C.MASKED, m.GroupClosed): _C.READY,
    (_C.ADVERTISED, m.Farewell): _C.ENDED,
    (_C.SHARED, m.Farewell): _C.ENDED,
    (_C.READY, m.Farewell): _C.ENDED,
    (_C.ASKED, m.Farewell): _C.ENDED,
    (_C.MASKED, m.Farewell): _C.ENDED,
}

CLIENT_MOVES: Final[Mapping[Trust, ClientMoves]] = {
    Trust.CURIOUS: {
        **_COMMON,
        # A malicious server could surround a client with colluders on a ring. So it may not use one.
        (_C.ADVERTISED, m.Neighbours): _C.SHARED,
        (_C.MASKED, m.Survivors): _C.READY,
    },
    Trust.MALICIOUS: {
        **_COMMON,
        (_C.MASKED, m.Survivors): _C.SIGNED,
        (_C.SIGNED, m.Confirmations): _C.READY,
        (_C.SIGNED, m.Query): _C.ASKED,
        (_C.SIGNED, m.GroupClosed): _C.READY,
        (_C.SIGNED, m.Farewell): _C.ENDED,
    },
}

_S: Final = ServerState
# Stages in the order in which they come. The last three repeat with every sum.
COLLECTED: Final[Mapping[ServerState, type[m.Message]]] = {
    _S.INVITING: m.Advertisement,
    _S.SHARING: m.Shares,
    _S.DEPOSITING: m.Deposit,
    _S.MASKING: m.MaskedInput,
    _S.CONFIRMING: m.Confirmation,
    _S.UNMASKING: m.Reveal,
}

_STAGE_OF: Final = {**{kind: state for state, kind in COLLECTED.items()}, m.Decline: _S.MASKING}
_ORDER: Final = list(COLLECTED)


def next_state(trust: Trust, state: ClientState, message: m.Message) -> ClientState:
    """Return a client's state after `message`. Raises `OutOfOrder` if `state` does not allow the message."""
    move = CLIENT_MOVES[trust].get((state, type(message)))
    if move is None:
        raise OutOfOrder(SERVER, f"{type(message).__name__} to a client that is {state.value}")
    return move


def is_late(state: ServerState, current_sum: int, message: m.Message) -> bool:
    """Return whether a server in `state`, at sum number `current_sum`, has already closed the stage that
    collects `message`. Return False for a message of a type that no stage collects."""
    stage = _STAGE_OF.get(type(message))
    if stage is None:
        return False
    index = getattr(message, "sum_index", current_sum)  # messages of set-up have no sum index
    closed = state not in _ORDER or _ORDER.index(stage) < _ORDER.index(state)
    return index < current_sum or (index == current_sum and closed)


def check_collected(state: ServerState, current_sum: int, message: m.Message, *, sender: int) -> None:
    """Raise `OutOfOrder`, blaming `sender`, unless `state` collects `message` in sum number `current_sum`."""
    index = getattr(message, "sum_index", current_sum)
    if _STAGE_OF.get(type(message)) is not state or index != current_sum:
        raise OutOfOrder(sender, f"{type(message).__name__} while {state.value}")


@contextmanager
def fail_on_error(
    stop: Callable[[ClientState], None], *, unless: tuple[type[SecaggError], ...] = ()
) -> Iterator[None]:
    """Call `stop(ClientState.FAILED)` if the block raises anything but `unless`. Errors are raised again."""
    try:
        yield
    except unless:
        raise
    except BaseException:
        stop(ClientState.FAILED)
        raise

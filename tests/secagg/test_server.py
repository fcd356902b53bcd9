"""The server machine by itself: what its owner may ask of it, and when."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.errors import CohortChanged, ParameterError, StateError, SumFailed, TooFewClients
from secagg.events import Late, SessionFailed, SessionReady, SumAborted, SumReleased
from secagg.insecure_seeds import seeded_registry
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.messages import MAX_COHORT, MAX_ROUND, MAX_SUMS, Lost
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.transitions import ServerState
from secagg.trust_levels import MAX_COMPLETE, Trust
from tests.secagg.flat_params import with_params

SIZE = 5
TABLE = Table(
    {
        "single": SumSpec(parts=(Part(name="x", size=2, bits=24, bound=Count(1000)),)),
        "step": SumSpec(parts=(Part(name="x", size=2, bits=24, bound=Count(1000)),), times=2),
    }
)
SETTINGS: dict[str, Any] = {
    "table": TABLE,
    "trust": Trust.CURIOUS,
    "sums": 4,
    "corrupt": 1,
    "dropout": 0.2,
    "min_cohort": 3,
    "max_cohort": SIZE,
    "min_contributors": 3,
}


class Session:
    """A server with five clients, of whom some are absent in the sums that `absent` names."""

    def __init__(self, *, sums: int = 4, absent: dict[int, tuple[Stage, list[int]]] | None = None) -> None:
        lost = absent or {}
        self.server, self.clients = local_machines(
            table=TABLE,
            params=SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0.2, sums=sums),
            members=range(SIZE),
        )
        self.local = LocalSession(
            self.server,
            self.clients,
            lambda member, _: {"x": [member, 1]},
            absent=lambda member, stage, k: k in lost and stage is lost[k][0] and member in lost[k][1],
        )
        self.local.open()


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"registry": seeded_registry(b"", range(SIZE))}, "only there"),
        ({"trust": Trust.MALICIOUS}, "a registry is needed"),
        ({"trust": "server"}, "trust must be one of"),
        ({"sums": 1.5}, "sums must be a whole number"),
        ({"sums": 0}, f"from 1 to {MAX_SUMS}"),
        ({"sums": MAX_SUMS + 1}, f"from 1 to {MAX_SUMS}"),
        ({"corrupt": -1}, "corrupt must be a whole number"),
        ({"min_contributors": 2}, "corrupt \\+ 2 <= min_contributors"),
        ({"min_contributors": 4}, "min_contributors <= min_cohort"),
        ({"min_cohort": SIZE + 1}, "min_cohort <= max_cohort"),
        ({"max_cohort": MAX_COMPLETE + 1, "graph": "complete"}, f"<= {MAX_COMPLETE}"),
        ({"max_cohort": MAX_COHORT + 1}, f"<= {MAX_COHORT}"),
        ({"graph": "star"}, "graph must be one of auto, complete, ring"),
        ({"min_neighbours": 2.0}, "min_neighbours must be a whole number"),
        ({"security_bits": 0}, "security_bits must be from 1 to 1024"),
        ({"liveness_bits": 1025}, "liveness_bits must be from 1 to 1024"),
        ({"dropout": 1.0}, "drop-out fraction"),
        ({"dropout": -0.1}, "drop-out fraction"),
    ],
)
def test_settings_that_cannot_work_raise_at_once(changes: dict[str, Any], sentence: str) -> None:
    ServerMachine(**with_params(SETTINGS))
    with pytest.raises(ParameterError, match=sentence):
        ServerMachine(**with_params({**SETTINGS, **changes}))


def test_a_repr_shows_where_it_stands() -> None:
    assert repr(ServerMachine(**with_params(SETTINGS))) == "ServerMachine(state=inviting, next_sum=0)"


# --- calls at the wrong time -----------------------------------------------------------------------


def test_there_is_a_time_for_every_call() -> None:
    server = ServerMachine(**with_params(SETTINGS))
    with pytest.raises(StateError, match="inviting, not ready"):
        server.ask("single", b"", round_number=0)
    with pytest.raises(StateError, match="no sum to abandon"):
        server.abandon()
    server.end()
    with pytest.raises(StateError, match="no stage to close; the server is ended"):
        server.close_stage()
    assert server.end().outgoing == ()


def test_a_report_after_the_end_is_late() -> None:
    session = Session()
    (ready,) = [event for event in session.local.events if isinstance(event, SessionReady)]
    session.server.end()
    assert session.server.receive(2, Lost(ready.session, b"\0").encode()) == (Late(2),)


def test_a_client_answers_only_the_sum_that_it_was_asked() -> None:
    session = Session()
    session.local.ask("single", b"a", round_number=0)
    with pytest.raises(StateError, match="sum 0 is not being asked"):
        session.clients[2].answer(0, {"x": [2, 1]})


def test_an_infeasible_threshold_fails_the_session() -> None:
    """Three clients of whom two may collude, under a drop-out that leaves too few."""
    settings = {**SETTINGS, "dropout": 0.9}
    server = ServerMachine(**with_params(settings))
    _, clients = local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0, sums=4),
        members=range(SIZE),
    )
    for member, client in clients.items():
        server.receive(member, client.receive(server.invitation).frames[0])
    (failed,) = [event for event in server.close_stage().events if isinstance(event, SessionFailed)]
    assert isinstance(failed.error, TooFewClients)
    assert "drop-out of 0.9 leaves 1" in str(failed.error)
    assert server.state is ServerState.FAILED


# --- questions that clients would refuse -----------------------------------------------------------


def test_only_what_clients_would_answer_is_asked() -> None:
    server = Session().server
    with pytest.raises(ParameterError, match="must be bytes"):
        server.ask("single", "text", round_number=0)  # type: ignore[arg-type]
    for kind, round_number, error in [
        ("other", 0, ParameterError),
        ("single", -1, ParameterError),
        ("single", MAX_ROUND + 1, ParameterError),
    ]:
        with pytest.raises(error):
            server.ask(kind, b"", round_number=round_number)
    assert server.state is ServerState.READY
    assert server.sums_left == 4


def test_a_session_has_only_so_many_sums() -> None:
    session = Session(sums=1)
    session.local.ask("single", b"a", round_number=0)
    assert session.server.sums_left == 0
    with pytest.raises(StateError, match="all 1 sums"):
        session.local.ask("single", b"b", round_number=1)


def test_a_question_is_asked_once() -> None:
    session = Session()
    session.local.ask("single", b"a", round_number=0)
    with pytest.raises(StateError, match="asked before"):
        session.local.ask("single", b"a", round_number=1)


@pytest.mark.parametrize(("round_number", "sentence"), [(3, "as often as declared"), (2, "is over")])
def test_a_kind_is_asked_as_often_as_declared_and_rounds_ascend(round_number: int, sentence: str) -> None:
    session = Session()
    session.local.ask("single", b"a", round_number=3)
    with pytest.raises(StateError, match=sentence):
        session.local.ask("single", b"b", round_number=round_number)
    assert session.local.ask("single", b"c", round_number=4).count == SIZE


# --- groups ----------------------------------------------------------------------------------------


def test_a_group_that_lost_a_client_between_two_sums_is_over() -> None:
    """Nobody is asked: the last total stands, and the next round goes on without the client."""
    session = Session()
    session.local.ask("step", b"a", round_number=0)
    session.server.drop(2)
    for _ in range(2):
        with pytest.raises(CohortChanged, match="its last total stands"):
            session.local.ask("step", b"b", round_number=0)
    assert session.server.sums_left == 3
    assert session.local.ask("step", b"b", round_number=1).count == SIZE - 1


def test_a_group_in_which_somebody_did_not_reveal_is_over() -> None:
    session = Session(absent={0: (Stage.REVEAL, [4])})
    assert session.local.ask("step", b"a", round_number=0).count == SIZE
    with pytest.raises(CohortChanged):
        session.local.ask("step", b"b", round_number=0)


def test_too_few_left_are_not_asked() -> None:
    session = Session()
    for member in (0, 1, 2):
        session.server.drop(member)
    with pytest.raises(TooFewClients, match="only 2 clients are left; 3 are needed"):
        session.server.ask("single", b"", round_number=0)
    assert session.server.state is ServerState.READY


def test_an_abandoned_sum_releases_nothing_and_the_session_lives() -> None:
    session = Session()
    session.server.ask("single", b"a", round_number=0)
    (event,) = session.server.abandon().events
    assert isinstance(event, SumAborted)
    assert type(event.error) is SumFailed
    assert session.local.ask("single", b"b", round_number=1).count == SIZE
    assert [e.sum_index for e in session.local.events if isinstance(e, SumReleased)] == [1]


def test_a_cohort_below_the_minimum_fails_the_session() -> None:
    """Though three clients would have a threshold."""
    settings = {**SETTINGS, "min_cohort": 4, "dropout": 0}
    server = ServerMachine(**with_params(settings))
    _, clients = local_machines(
        table=TABLE, params=SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0, sums=4), members=range(3)
    )
    for member, client in clients.items():
        server.receive(member, client.receive(server.invitation).frames[0])
    (failed,) = [event for event in server.close_stage().events if isinstance(event, SessionFailed)]
    assert "only 3 clients came; 4 are needed" in str(failed.error)

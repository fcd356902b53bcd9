"""Rings that name their members: clients that compare the clients of their sums may join, and do compare."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from secagg import messages as m
from secagg.client_memory import Memory, VolatileMemory
from secagg.cohort_members import Cohort, CohortView, Neighbourhood
from secagg.differencing_rules import SequenceRules, whole_payload
from secagg.errors import (
    HiddenMembers,
    ParameterError,
    SmallDifference,
    SmallThreshold,
    TooFewClients,
    UnchangedValues,
)
from secagg.events import SessionReady
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.message_records import Advert, encode_ids
from secagg.policy import Policy
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust

TABLE = Table({"sum": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=Count(1 << 20)),))})
MEMBERS = tuple(range(3, 43, 2))
MIN_DIFFERENCE = 2
# What a client compares, and the error of a set that differs by one client.
RULES: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "static": ({"static": ["sum"]}, UnchangedValues),
    "min_difference": ({"min_difference": MIN_DIFFERENCE}, SmallDifference),
}
every_rule = pytest.mark.parametrize(("rules", "error"), RULES.values(), ids=RULES)


class Meeting:
    """One session after another of clients that remember."""

    def __init__(self, rules: Mapping[str, Any], **params: Any) -> None:
        self._rules = rules
        terms: dict[str, Any] = {"corrupt": 1, "sums": 2, "dropout": 0.1, "graph": "ring"}
        self._terms = {**terms, "name_members": True, **params}
        self._memories: dict[int, Memory] = {member: VolatileMemory() for member in MEMBERS}
        self._round = 0

    def open(self, members: Collection[int] = MEMBERS, *, away: Collection[int] = ()) -> LocalSession:
        """A session of `members`, in which those in `away` send no input."""
        params = SessionParams(trust=Trust.CURIOUS, max_cohort=len(members), **self._terms)
        _, clients = local_machines(
            table=TABLE,
            params=params,
            members=members,
            memories=self._memories,
            unnoised_sums=99,
            **self._rules,
        )
        session = LocalSession(
            ServerMachine(table=TABLE, params=params),
            clients,
            lambda member, _: {"x": [member]},
            absent=lambda member, stage, _: member in away and stage is Stage.MASK,
        )
        session.open()
        return session

    def ask(self, session: LocalSession) -> tuple[int, ...]:
        """The contributors of an exact sum."""
        self._round += 1
        total = session.ask("sum", b"%d" % self._round, round_number=self._round)
        assert total["x"].tolist() == [sum(session.contributors)]
        return session.contributors

    def meet(self, *members: Any, **away: Any) -> tuple[int, ...]:
        """The contributors to the one sum of a session."""
        session = self.open(*members, **away)
        contributors = self.ask(session)
        session.end()
        return contributors


# --- who joins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("agreement", list(KeyAgreement))
@every_rule
def test_clients_that_compare_join_a_ring_that_names_its_members(
    rules: dict[str, Any], error: type[Exception], agreement: KeyAgreement
) -> None:
    meeting = Meeting(rules, key_agreement=agreement)
    session = meeting.open()
    (ready,) = (event for event in session.events if isinstance(event, SessionReady))
    assert ready.neighbours < len(MEMBERS) - 2
    assert meeting.ask(session) == meeting.ask(session) == MEMBERS
    assert session.refusals == {}


@every_rule
def test_clients_that_compare_refuse_a_ring_that_does_not(
    rules: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(TooFewClients) as failure:
        Meeting(rules, name_members=False).open()
    assert isinstance(failure.value.__cause__, HiddenMembers)


def test_others_join_either_ring() -> None:
    for named in (False, True):
        assert Meeting({}, name_members=named).meet() == MEMBERS


@every_rule
def test_a_ring_with_few_holders_for_each_client_is_refused(
    rules: dict[str, Any], error: type[Exception]
) -> None:
    """More neighbours than safety needs, and the same threshold: then few clients know of a total."""
    with pytest.raises(TooFewClients) as failure:
        Meeting(rules, min_neighbours=16).open()
    assert isinstance(failure.value.__cause__, SmallThreshold)
    assert Meeting({}, min_neighbours=16).meet() == MEMBERS


@every_rule
def test_local_machines_name_the_members_where_clients_compare_them(
    rules: dict[str, Any], error: type[Exception]
) -> None:
    params = SessionParams(trust=Trust.CURIOUS, corrupt=1, graph=GraphChoice.RING)
    server, clients = local_machines(table=TABLE, params=params, members=MEMBERS, **rules)
    session = LocalSession(server, clients, lambda member, _: {"x": [member]})
    session.open()
    assert session.ask("sum").count == len(MEMBERS)


def test_members_are_named_in_ascending_order_to_all_alike() -> None:
    for named in (False, True):
        params = SessionParams(trust=Trust.CURIOUS, corrupt=1, graph=GraphChoice.RING, name_members=named)
        server, clients = local_machines(table=TABLE, params=params, members=MEMBERS)
        for member, client in clients.items():
            (frame,) = client.receive(server.invitation).frames
            server.receive(member, frame)
        outgoing = server.close_stage().outgoing
        told = [m.decode(each.frame, sender="server", limit=1 << 20) for each in outgoing]
        assert len(told) == len(MEMBERS)
        ids = encode_ids(MEMBERS) if named else b""
        assert {each.members for each in told if isinstance(each, m.Neighbours)} == {ids}


# --- how many know of a total ------------------------------------------------------------------------


def enough(
    cohort: CohortView, *, least: int = 0, corrupt: int = 0, contributors: int = 0, apart: int = 0
) -> bool:
    """Whether a client that compares, and requires these numbers, joins a cohort."""
    policy = Policy(
        trust=Trust.CURIOUS,
        corrupt=corrupt,
        min_cohort=max(corrupt + 2, contributors),
        max_cohort=99,
        min_contributors=max(corrupt + 2, contributors),
        max_sums=1,
        unnoised_sums=1,
        min_difference=apart,
    )
    rules = SequenceRules(
        policy, VolatileMemory(), table=TABLE, static=[] if apart else ["sum"], content_of=whole_payload
    )
    try:
        rules.check_cohort(cohort, least)
    except SmallThreshold:
        return False
    return True


def ring(size: int, neighbours: int, threshold: int) -> Neighbourhood:
    adverts = {k: Advert(k, b"", b"", (), ()) for k in range(neighbours + 1)}
    return Neighbourhood(bytes(32), threshold, size, bytes(32), adverts, tuple(range(size)))


@pytest.mark.parametrize(("size", "threshold"), [(7, 4), (8, 5), (9, 5)])
def test_on_a_complete_graph_a_majority_knows(size: int, threshold: int) -> None:
    adverts = tuple(Advert(k, b"", b"", (), ()) for k in range(size))
    assert enough(Cohort(bytes(32), threshold, adverts))
    assert not enough(Cohort(bytes(32), threshold - 1, adverts))


def test_on_a_ring_as_many_honest_clients_know_as_sets_must_differ_by() -> None:
    """Of 17 clients in a total, each has two of nine holders that reveal: at least four, whoever they are."""
    found, least = ring(24, neighbours=8, threshold=2), 17
    assert enough(found, least=least, contributors=4)
    assert not enough(found, least=least, contributors=5)
    assert enough(found, least=least, apart=4)
    assert not enough(found, least=least, apart=5)
    assert enough(found, least=least, corrupt=1, apart=3)  # one of the four may be a colluder
    assert not enough(found, least=least, corrupt=1, apart=4)
    assert not enough(found, least=least, corrupt=1, contributors=4)
    assert enough(found, least=least + 2, apart=5)  # 19 of them need 38 shares, and four holders have 36


# --- what they compare -------------------------------------------------------------------------------


@every_rule
def test_one_client_fewer_is_refused(rules: dict[str, Any], error: type[Exception]) -> None:
    meeting = Meeting(rules)
    assert meeting.meet() == MEMBERS
    session = meeting.open(MEMBERS[1:])
    with pytest.raises(TooFewClients):
        meeting.ask(session)
    assert {type(refusal) for refusal in session.refusals.values()} == {error}
    assert session.refusals.keys() == set(MEMBERS[1:])


@every_rule
def test_one_client_that_drops_out_is_refused(rules: dict[str, Any], error: type[Exception]) -> None:
    meeting = Meeting(rules)
    assert meeting.meet() == MEMBERS
    session = meeting.open(away=MEMBERS[4:5])
    with pytest.raises(TooFewClients):
        meeting.ask(session)
    assert {type(refusal) for refusal in session.refusals.values()} == {error}


def test_as_many_others_as_demanded_are_accepted() -> None:
    """Two clients are missing, as the policies say; neither of them is anybody's only difference."""
    meeting = Meeting(RULES["min_difference"][0])
    assert meeting.meet() == MEMBERS
    assert meeting.meet(MEMBERS[MIN_DIFFERENCE:]) == MEMBERS[MIN_DIFFERENCE:]


@every_rule
def test_the_same_clients_in_another_ring_are_accepted(rules: dict[str, Any], error: type[Exception]) -> None:
    meeting = Meeting(rules)
    for _ in range(3):
        assert meeting.meet() == MEMBERS


def test_a_complete_graph_has_no_members_to_name() -> None:
    """They are all in the key list."""
    meeting = Meeting(RULES["static"][0], graph="complete")
    assert meeting.meet() == MEMBERS
    with pytest.raises(ParameterError):
        Meeting({}, name_members="yes").open()

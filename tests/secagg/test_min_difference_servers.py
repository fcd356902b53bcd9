"""A server of clients that compare the clients of successive sums: it asks nothing that they refuse."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from secagg.bitmap import PositionSet
from secagg.client_memory import VolatileMemory
from secagg.differencing_rules import Rule, SetLog, SumSequence, kind_sequence, whole_payload
from secagg.errors import ParameterError, SumFailed, TooFewClients
from secagg.events import SumReleased
from secagg.keys import Identity
from secagg.ledger import ServerLedger
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.messages import Query
from secagg.repeated_query_roster import RepeatPlanner
from secagg.session_params import SessionParams
from secagg.sum_spec import LInf, Part, SumSpec, Table, Total
from secagg.trust_levels import Trust

APART = 3
PART = (Part(name="x", size=2, bits=32, bound=LInf(9.0)),)
TABLE = Table({"mean": SumSpec(parts=PART, group="one"), "again": SumSpec(parts=PART, group="one")})
MEMBERS = tuple(range(10))
PARAMS = SessionParams(trust=Trust.CURIOUS, corrupt=1, sums=8, dropout=0.4, min_difference=APART)


class Sums:
    """Sessions with the same clients, in which a round has two sums of one group."""

    def __init__(self, trust: Trust, ledger: ServerLedger | None = None) -> None:
        self.params = replace(PARAMS, trust=trust)
        self.memories = {k: VolatileMemory() for k in MEMBERS}
        self.history = SetLog()
        self.ledger = ledger
        self.rounds = 0
        self._identities = {k: Identity.generate() for k in MEMBERS}

    def session(self, here: tuple[int, ...]) -> LocalSession:
        server, clients = local_machines(
            table=TABLE,
            params=self.params,
            members=here,
            memories=self.memories,
            unnoised_sums=1000,
            min_difference=APART,
            history=self.history,
            enrolled=MEMBERS,
            make_identity=self._identities.__getitem__,
        )
        self.missing: set[int] = set()
        session = LocalSession(
            server,
            clients,
            lambda member, _asked: {"x": [float(member), 1.0]},
            absent=lambda member, stage, _sum: stage is Stage.MASK and member in self.missing,
            ledger=self.ledger,
        )
        session.open()
        return session

    def round(self, here: tuple[int, ...], missing: set[int]) -> set[int] | None:
        """The contributors of a round; None if it fails. No client ever refuses."""
        session = self.session(here)
        self.missing, self.rounds = missing, self.rounds + 1
        try:
            for kind in ("mean", "again"):
                session.ask(kind, f"{kind} {self.rounds}".encode(), round_number=self.rounds)
            return set(session.contributors)
        except SumFailed:
            return None
        finally:
            assert not session.refusals
            session.end()


@pytest.mark.parametrize("trust", list(Trust))
def test_no_client_refuses_and_sums_go_on(trust: Trust) -> None:
    draw, sums, found = random.Random(5), Sums(trust), []
    for _ in range(12):
        here = tuple(sorted(draw.sample(MEMBERS, draw.randint(7, 10))))
        missing = {member for member in here if draw.random() < 0.05}
        found.append(sums.round(here, missing))
    released = {frozenset(each) for each in found if each is not None}
    assert sum(each is not None for each in found) >= 5
    assert len(released) > 2
    assert all(len(one ^ other) >= APART for one, other in combinations(released, 2))


def test_survivors_that_are_close_are_not_named_and_the_session_goes_on() -> None:
    sums = Sums(Trust.CURIOUS)
    assert sums.round(MEMBERS, set()) == set(MEMBERS)
    session = sums.session(MEMBERS)
    sums.missing = {3}
    with pytest.raises(TooFewClients, match="min_difference"):
        session.ask("mean", b"2", round_number=2)
    assert not session.refusals
    total: Total = session.ask("mean", b"3", round_number=3)  # one more may drop out than has to
    assert total.count == len(session.contributors)
    assert 3 not in session.contributors
    assert total.count <= len(MEMBERS) - APART
    session.end()


def test_where_no_set_is_far_enough_nothing_is_asked() -> None:
    sums = Sums(Trust.CURIOUS)
    sums.params = replace(sums.params, min_contributors=8, min_cohort=8, dropout=0.2)
    assert sums.round(MEMBERS, set()) == set(MEMBERS)
    session = sums.session(MEMBERS[1:])
    with pytest.raises(TooFewClients, match="batches"):
        session.ask("mean", b"2", round_number=2)
    assert not [event for event in session.events if isinstance(event, SumReleased)]
    session.end()


def test_a_server_with_its_ledger_goes_on_after_a_restart(tmp_path: Path) -> None:
    with ServerLedger.create(tmp_path / "server") as ledger:
        sums = Sums(Trust.MALICIOUS, ledger)
        assert sums.round(MEMBERS, set()) == set(MEMBERS)
        rows = [each for each, _ in ledger.history.entries()]
        assert {kind_sequence("mean"), kind_sequence("again")} <= set(rows)
    with ServerLedger.open(tmp_path / "server") as ledger:
        sums.ledger, sums.history = ledger, ledger.history.copy(all_clients=False)
        fewer = sums.round(MEMBERS[1:], set())
        assert fewer is not None
        assert len(fewer) == len(MEMBERS) - APART


# --- the planner ---


def planner(log: SetLog, params: SessionParams = PARAMS) -> RepeatPlanner:
    return RepeatPlanner(log, params, table=TABLE, content_of=whole_payload)


def query(payload: bytes, asked: tuple[int, ...] = MEMBERS, kind: str = "mean") -> Query:
    return Query(bytes(32), 0, 0, kind, PositionSet(asked).pack(16), payload)


def test_a_set_is_recorded_once_for_each_kind() -> None:
    log = SetLog()
    assert planner(log).confirm(query(b"1"), MEMBERS) == (kind_sequence("mean"),)
    assert planner(log).confirm(query(b"2"), MEMBERS) == ()
    assert planner(log).confirm(query(b"3", kind="again"), MEMBERS) == (kind_sequence("again"),)


def test_kinds_are_compared_with_each_other() -> None:
    """Sums of a group have the same clients, so a set that one kind refuses serves no other."""
    log = SetLog()
    planner(log).confirm(query(b"1"), MEMBERS)
    with pytest.raises(TooFewClients):
        planner(log).confirm(query(b"2", kind="again"), MEMBERS[1:])


def test_as_many_clients_may_drop_out_as_in_the_last_sum() -> None:
    log = SetLog()
    wide = (*MEMBERS, 10, 11)
    planner(log).confirm(query(b"1", wide), MEMBERS)
    assert log.dropouts == 2
    roster = planner(log).roster("mean", b"2", wide, need=4)
    for gone in combinations(roster, 2):
        assert not log.is_close(kind_sequence("mean"), set(roster) - set(gone), least=APART)
    planner(log).confirm(query(b"2", roster), roster)
    assert planner(log).roster("mean", b"3", MEMBERS, need=4) == MEMBERS


def test_repeated_contents_are_far_enough_as_well() -> None:
    """A query that was confirmed before is asked of clients that differ by `min_contributors`, too."""
    signed = replace(PARAMS, trust=Trust.MALICIOUS, min_contributors=5, min_difference=2)
    log = SetLog()
    planner(log, signed).confirm(query(b"model"), MEMBERS)
    again = planner(log, signed).roster("mean", b"model", MEMBERS[1:], need=4)
    assert len(again) == len(MEMBERS) - 5
    assert len(planner(log, signed).roster("mean", b"another", MEMBERS[1:], need=4)) == len(MEMBERS) - 2


def test_a_difference_is_a_whole_number() -> None:
    with pytest.raises(ParameterError):
        replace(PARAMS, min_difference=-1)


# --- what is remembered ---


def test_a_copy_has_the_sets_and_what_was_released() -> None:
    log, mean = SetLog(), kind_sequence("mean")
    log.add(mean, [1, 2])
    log.released.add(mean)
    copy = log.copy(all_clients=True)
    assert copy.all_clients
    assert copy.confirmed(mean) == [frozenset({1, 2})]
    assert copy.released == {mean}
    copy.add(mean, [3])
    copy.released.clear()
    assert log.has(mean, [2, 1])
    assert not log.has(mean, [3])
    assert not log.has(SumSequence(Rule.KIND, b"other"), [1])
    assert log.released == {mean}


def test_the_ledger_knows_whether_the_last_total_was_released(tmp_path: Path) -> None:
    with ServerLedger.create(tmp_path / "server") as ledger:
        sums = Sums(Trust.MALICIOUS, ledger)
        session = sums.session(MEMBERS)
        session.ask("mean", b"1", round_number=1)
        released = ledger.history.released
        assert kind_sequence("mean") in released
        assert any(each.rule is Rule.CONTENT for each in released)
        session._absent = lambda _member, stage, _sum: stage is Stage.REVEAL
        with pytest.raises(SumFailed):
            session.ask("mean", b"2", round_number=2)
        session.end()
    with ServerLedger.open(tmp_path / "server") as ledger:
        contents = {each for each, _ in ledger.history.entries() if each.rule is Rule.CONTENT}
        assert len(contents) == 2
        assert len(contents & ledger.history.released) == 1

"""Repeated queries under `malicious_server`, values that stay the same, and the limits of one ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.client_memory import VolatileMemory
from secagg.differencing_rules import (
    Rule,
    SetLog,
    SumSequence,
    content_sequence,
    static,
    whole_payload,
)
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import (
    CorruptTotal,
    ExpiredRegistry,
    LedgerError,
    ParameterError,
    SumFailed,
    TooFewClients,
    UnchangedValues,
)
from secagg.events import SurvivorsFixed
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger, ServerLedger
from secagg.ledger.file import _Forks, _forks
from secagg.ledger.file_location import tag_key_path
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.machine_hooks import ClientHooks
from secagg.messages import Query
from secagg.query_context import Question
from secagg.repeated_query_roster import RepeatPlanner
from secagg.residue_packing import Residues
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, LInf, Part, SumSpec, Table
from secagg.transitions import ClientState
from secagg.trust_levels import Trust, dropouts_allowed
from tests.attacks.rig import KIND, PART, Rig

TABLE = Table({"mean": SumSpec(parts=(Part(name="x", size=2, bits=32, bound=LInf(9.0)),))})
SIGNED = SessionParams(trust="malicious_server", corrupt=1, sums=4, dropout=0.2)  # type: ignore[arg-type]
MEMBERS = tuple(range(12))
LEAST = SIGNED.min_contributors


def content(_kind: str, payload: bytes) -> bytes:
    return payload[1:]


# --- the planner -----------------------------------------------------------------------------------


def planner(log: SetLog, params: SessionParams = SIGNED) -> RepeatPlanner:
    return RepeatPlanner(log, params, table=TABLE, content_of=content)


def query(payload: bytes) -> Query:
    return Query(bytes(32), 0, 0, "mean", b"\0", payload)


def test_a_new_query_is_asked_of_everybody() -> None:
    log = SetLog()
    planner(log).confirm(query(b"1model"), MEMBERS)
    assert planner(log).roster("mean", b"2another", MEMBERS, need=8) == MEMBERS


def test_a_repeat_leaves_out_enough_clients_of_every_earlier_set() -> None:
    log = SetLog()
    sets = [set(MEMBERS), set(MEMBERS[3:])]
    for each in sets:
        planner(log).confirm(query(b"1model"), tuple(sorted(each)))
    roster = set(planner(log).roster("mean", b"2model", MEMBERS, need=4))
    assert all(len(each - roster) >= LEAST for each in sets)
    for gone in roster:  # whoever drops out of the repeat
        assert not log.is_close(sequence(b"model"), roster - {gone}, least=LEAST)


def sequence(content: bytes) -> SumSequence:
    return content_sequence("mean", b"0" + content, lambda _kind, payload: payload[1:])


def test_a_small_cohort_repeats_with_exactly_the_earlier_clients() -> None:
    log = SetLog()
    planner(log).confirm(query(b"1model"), MEMBERS[:10])
    assert planner(log).roster("mean", b"2model", MEMBERS[:11], need=10) == MEMBERS[:10]
    with pytest.raises(TooFewClients, match="confirmed before"):
        planner(log).roster("mean", b"2model", MEMBERS[1:11], need=10)


def test_where_nobody_drops_out_the_same_clients_are_asked_again() -> None:
    log, steady = SetLog(), replace(SIGNED, dropout=0)
    planner(log, steady).confirm(query(b"1model"), MEMBERS)
    assert planner(log, steady).roster("mean", b"2model", MEMBERS, need=8) == MEMBERS
    every = SetLog(all_clients=True)
    planner(every).confirm(query(b"1model"), MEMBERS)
    assert planner(every).roster("mean", b"2model", MEMBERS, need=8) == MEMBERS
    rest = planner(log, steady).roster("mean", b"2model", MEMBERS[1:], need=8)
    assert len(set(MEMBERS) - set(rest)) >= LEAST


def test_survivors_that_would_refuse_are_not_asked_to_confirm() -> None:
    log = SetLog()
    planner(log).confirm(query(b"1model"), MEMBERS)
    with pytest.raises(TooFewClients, match="too close"):
        planner(log).confirm(query(b"2model"), MEMBERS[1:])
    assert planner(log).confirm(query(b"3model"), MEMBERS) == (sequence(b"model"),)


def test_a_curious_server_plans_nothing() -> None:
    log, curious = SetLog(), replace(SIGNED, trust="curious_server")  # type: ignore[arg-type]
    assert planner(log, curious).confirm(query(b"1model"), MEMBERS) == ()
    assert planner(log, curious).roster("mean", b"2model", MEMBERS[1:], need=3) == MEMBERS[1:]


def test_without_a_content_all_of_the_payload_is() -> None:
    one, other = (content_sequence("mean", payload, whole_payload) for payload in (b"1model", b"2model"))
    assert one != other


# --- sessions that fail and go on ------------------------------------------------------------------


class Training:
    """Sessions over the same memories, each of which asks for one sum of the same model."""

    def __init__(self, ledger: ServerLedger | None = None, *, clients: int = 12) -> None:
        self.members = tuple(range(clients))
        identities = {k: Identity.generate() for k in self.members}
        self.memories = {k: VolatileMemory() for k in self.members}
        self.history = SetLog()
        self.ledger = ledger
        self.rounds = 0
        self._identities = identities

    def round(self, *, absent: Mapping[int, Stage] | None = None, liar: int | None = None) -> set[int]:
        """Ask for one sum; its contributors. Clients in `absent` are missing from that stage on."""
        self.rounds += 1
        gone = absent or {}
        server, clients = local_machines(
            table=TABLE,
            params=SIGNED,
            members=self.members,
            memories=self.memories,
            unnoised_sums=100,
            content_of=content,
            history=self.ledger.history if self.ledger else self.history,
            make_identity=self._identities.__getitem__,
            client_hooks=lambda member: ClientHooks(transform=flip if member == liar else None),
        )
        stages = list(Stage)
        session = LocalSession(
            server,
            clients,
            lambda member, _asked: {"x": [float(member), 1.0]},
            absent=lambda k, stage, _sum: k in gone and stages.index(stage) >= stages.index(gone[k]),
            ledger=self.ledger,
        )
        try:
            session.open()
            session.ask("mean", bytes([self.rounds]) + b"model", round_number=self.rounds)
            assert not session.refusals
            return set(session.contributors)
        finally:
            session.end()


def flip(_question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
    residues[-1][0] ^= np.uint64(4)
    return residues


def test_after_a_corrupt_total_the_same_model_is_summed_over_other_clients() -> None:
    training = Training()
    with pytest.raises(CorruptTotal):
        training.round(liar=3)
    found = training.round(absent={0: Stage.MASK})
    assert 0 not in found
    assert len(found) >= 12 - LEAST - 1


def test_after_a_release_others_are_left_out_while_drop_outs_leave_enough() -> None:
    training = Training()
    assert training.round() == set(MEMBERS)
    assert 5 not in training.round(absent={5: Stage.MASK})


def test_after_a_release_the_same_clients_are_asked_first_where_few_would_be_left() -> None:
    log = SetLog()
    asked = planner(log)
    asked.confirm(query(b"1model"), MEMBERS)
    asked.release(query(b"1model"))
    left = len(MEMBERS) - LEAST
    lost = dropouts_allowed(left, SIGNED.dropout)
    assert lost
    assert len(asked.roster("mean", b"2model", MEMBERS, need=left - lost)) == left
    assert asked.roster("mean", b"2model", MEMBERS, need=left - lost + 1) == MEMBERS
    with pytest.raises(TooFewClients, match="too close"):
        asked.confirm(query(b"2model"), MEMBERS[1:])
    assert len(asked.roster("mean", b"3model", MEMBERS, need=left - lost + 1)) == left


def test_a_later_sum_of_a_group_is_not_compared() -> None:
    """Its clients are those of the first sum of the group, whose query was compared."""
    log = SetLog()
    assert planner(log).confirm(query(b"1model"), MEMBERS, later=True) == ()
    planner(log).release(query(b"1model"), later=True)
    assert planner(log).confirm(query(b"2model"), MEMBERS[1:]) == (sequence(b"model"),)
    assert not log.released


def test_after_too_few_revealed_the_same_model_is_summed() -> None:
    training = Training()
    with pytest.raises(TooFewClients):
        training.round(absent=dict.fromkeys(range(8), Stage.REVEAL))
    assert len(training.round(absent={11: Stage.MASK})) >= 12 - LEAST - 1


def test_a_server_without_its_history_is_refused_and_one_with_its_ledger_is_not(tmp_path: Path) -> None:
    """The server is killed after clients confirmed, before anything was released."""
    with ServerLedger.create(tmp_path / "server") as ledger:
        training = Training(ledger)
        with pytest.raises(TooFewClients):
            training.round(absent=dict.fromkeys(MEMBERS, Stage.REVEAL))
    training.ledger = None
    with pytest.raises((SumFailed, AssertionError)):
        training.round(absent={11: Stage.MASK})
    with ServerLedger.open(tmp_path / "server") as ledger:
        training.ledger = ledger
        assert len(training.round(absent={11: Stage.MASK})) >= 12 - LEAST - 1


def test_the_survivors_are_an_event_before_anybody_confirms(tmp_path: Path) -> None:
    with ServerLedger.create(tmp_path / "server") as ledger:
        ledger.note(SurvivorsFixed(SumSequence(Rule.CONTENT, b"key"), (1, 2, 5)))
        assert ledger.history.confirmed(SumSequence(Rule.CONTENT, b"key")) == [frozenset({1, 2, 5})]


def test_a_local_session_declines_unchanged_values() -> None:
    memories = {k: VolatileMemory() for k in range(5)}
    params = SessionParams(trust="curious_server", corrupt=1, dropout=0.2)  # type: ignore[arg-type]

    def run(number: int, members: range) -> LocalSession:
        server, clients = local_machines(
            table=TABLE, params=params, members=members, memories=memories, static=["mean"], unnoised_sums=9
        )
        session = LocalSession(server, clients, lambda member, _asked: {"x": [float(member), 1.0]})
        try:
            session.open()
            session.ask("mean", bytes([number]), round_number=number)
        finally:
            session.end()
        return session

    run(0, range(5))
    with pytest.raises(TooFewClients) as failure:
        run(1, range(4))
    assert isinstance(failure.value.__cause__, UnchangedValues)
    run(2, range(5))


def test_a_static_kind_is_one_of_the_table() -> None:
    with pytest.raises(ParameterError, match="no kind of sum 'median'"):
        local_machines(table=TABLE, params=SIGNED, members=MEMBERS, static=["median"])


# --- time and processes ----------------------------------------------------------------------------

EXPIRES = 1_000_000


def expiring() -> tuple[Registry, dict[int, Identity]]:
    identities = {k: Identity.generate() for k in range(3)}
    registry = Registry(1, {k: each.public for k, each in identities.items()}, expires=EXPIRES)
    return registry, identities


def server_at(registry: Registry, now: int | None) -> ServerMachine:
    return ServerMachine(table=TABLE, params=replace(SIGNED, max_cohort=3), registry=registry, now=now)


@pytest.mark.parametrize(
    ("now", "error"), [(EXPIRES, ExpiredRegistry), (None, ParameterError), (EXPIRES - 1, None)]
)
def test_both_machines_look_at_the_clock_of_their_caller(now: int | None, error: Any) -> None:
    from secagg.client import ClientMachine
    from secagg.policy import Policy

    registry, identities = expiring()
    policy = Policy(trust=SIGNED.trust, corrupt=1, min_cohort=3, max_cohort=3, min_contributors=3,
                    max_sums=4, unnoised_sums=4)  # fmt: skip
    client = ClientMachine(
        member=0,
        table=TABLE,
        policy=policy,
        memory=VolatileMemory(),
        identity=identities[0],
        registry=registry,
    )
    invitation = server_at(registry, EXPIRES - 1).invitation
    if error is None:
        server_at(registry, now)
        assert client.receive(invitation, now=now).frames
        return
    with pytest.raises(error):
        server_at(registry, now)
    with pytest.raises(error):
        client.receive(invitation, now=now)


FORK = """
import os, sys
from secagg.errors import LedgerError
from secagg.ledger import ClientLedger
ledger = ClientLedger.open(sys.argv[1], member=5)
if {early}:
    ledger.open_session()
child = os.fork()
if child == 0:
    refused = 0
    acts = [ledger.open_session, lambda: ledger.remember_session(bytes(32)), lambda: ledger.spend]
    acts += [lambda: ledger.note_confirmed(bytes(32), 0, 3), lambda: ClientLedger.open(sys.argv[1], member=5)]
    for act in acts:
        try:
            act()
        except LedgerError:
            refused += 1
        except Exception:
            pass
    ledger.close_session()
    ledger.close()
    os._exit(refused)
_, status = os.waitpid(child, 0)
if not {early}:
    ledger.open_session()
other = ClientLedger.open(sys.argv[1], member=5)
try:
    other.open_session()
    print("two sessions")
except Exception as error:
    print(type(error).__name__, os.waitstatus_to_exitcode(status))
ledger.remember_session(bytes(32))
"""


@pytest.mark.parametrize("early", [False, True])
def test_a_fork_does_not_share_a_ledger(early: bool, tmp_path: Path) -> None:
    """Under a lock that both inherit, parent and child could both take part in sessions."""
    ClientLedger.create(tmp_path / "ledger", member=5).close()
    program = [sys.executable, "-c", FORK.format(early=early), str(tmp_path / "ledger")]
    found = subprocess.run(program, capture_output=True, text=True, check=True, env=os.environ)
    assert found.stdout.split() == ["SessionLive", "5"]


def test_a_ledger_of_the_parent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ClientLedger.create(tmp_path / "ledger", member=5) as ledger:
        with monkeypatch.context() as child:
            forked(child)
            for act in (lambda: ledger.spend, lambda: ledger.note_confirmed(bytes(32), 0, 3)):
                with pytest.raises(LedgerError, match="forked"):
                    act()
            with pytest.raises(LedgerError, match="forked"):
                ClientLedger.open(tmp_path / "ledger", member=5)
        assert ledger.spend.unnoised == 0


def forked(patch: pytest.MonkeyPatch) -> None:
    """As if this process were a child of itself."""
    child = _Forks()
    child._opened.update(_forks._opened)
    child.number = _forks.number
    child.count()
    patch.setattr("secagg.ledger.file._forks", child)


def test_a_fork_of_a_client_signs_no_second_survivor_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sum with noise that is compared with no other, nothing is written before a client signs."""
    part = Part(name=PART, size=4, bits=40, bound=Count(9), noise=Noise(scale=4, variance=Fraction(900)))
    spec = SumSpec(parts=(part,), promise=NoiseAssumptions(clients=5, dropouts=1, colluders=0))
    rig = Rig(5, Trust.MALICIOUS, table=Table({KIND: spec}))
    with ClientLedger.create(tmp_path / "ledger", member=0, identity=rig.identity(0).public) as ledger:
        rig.memories[0] = ledger
        rig.restart()
        cohort = rig.set_up(threshold=3)
        rig.send(0, rig.query(cohort, 0, range(5)))
        rig.answer(0, np.zeros(4, np.int64))
        forked(monkeypatch)
        with pytest.raises(LedgerError, match="forked"):
            rig.send(0, rig.survivors(cohort, 0, range(4)))
        assert rig.machines[0].state is ClientState.FAILED


def test_a_child_forgets_the_ledger_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ClientLedger.create(tmp_path / "ledger", member=5)
    connection = ledger._file._connection
    with monkeypatch.context() as child:
        forked(child)
        ledger.close_session()
        ledger.close()
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)  # the parent's is open
    connection.close()


def test_a_ledger_that_was_closed_before_a_fork_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ClientLedger.create(tmp_path / "ledger", member=5).close()
    forked(monkeypatch)
    with ClientLedger.open(tmp_path / "ledger", member=5) as ledger:
        assert ledger.spend.unnoised == 0


@pytest.mark.parametrize("other", [False, True])
def test_a_key_is_private_and_made_once(other: bool, tmp_path: Path) -> None:
    with (
        ClientLedger.create(tmp_path / "ledger", member=5) as one,
        ClientLedger.open(tmp_path / "ledger", member=5) as two,
    ):
        if other:
            two._file.append(lambda: {"entry": "tag key", "check": "of another process"})
            with pytest.raises(LedgerError, match="try again"):
                one._file.append(one._new_tag_key)
            return
        tag = one.tag(b"values")
        assert two.tag(b"values") == tag
    tag_key_path(tmp_path / "ledger").chmod(0o644)
    with (
        ClientLedger.open(tmp_path / "ledger", member=5) as again,
        pytest.raises(LedgerError, match="chmod 600"),
    ):
        again.tag(b"values")


def test_a_key_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with ClientLedger.create(tmp_path / "ledger", member=5) as ledger:
        tag_key_path(tmp_path / "ledger").mkdir()
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.tag(b"values")


def test_a_function_can_be_marked_as_static() -> None:
    @static
    def answer(_asked: object) -> dict[str, list[int]]:
        return {"visits": [12]}

    assert vars(answer)["static"]
    assert answer(None) == {"visits": [12]}


def test_sets_are_saved_with_their_sequences() -> None:
    log, kept = SetLog(), SumSequence(Rule.KIND, b"mean")
    log.add(kept, [5, 1])
    log.add(kept, [2])
    log.add(sequence(b"model"), [7])
    assert sorted(log.entries(), key=str) == sorted(
        [(kept, (1, 5)), (kept, (2,)), (sequence(b"model"), (7,))], key=str
    )

"""Differencing across sums that are new by themselves: unchanged values, repeated queries, single leavers.

Five clients, of which one is left out of the second sum. The difference of the two totals is its vector.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import messages as m
from secagg.bitmap import PositionSet
from secagg.client_memory import Memory, VolatileMemory
from secagg.cohort_members import Cohort
from secagg.differencing_rules import Rule, SetLog, SumSequence, _canonical
from secagg.errors import (
    LedgerError,
    PeerError,
    RepeatedQuery,
    SmallDifference,
    SmallThreshold,
    UnchangedValues,
)
from secagg.ledger import ClientLedger
from secagg.ledger.file_location import tag_key_path
from secagg.local_session import LocalSession, local_machines
from secagg.session_params import SessionParams
from secagg.sum_spec import Bound, Count, LInf, Part, Residue, SumSpec, Table
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.differencing import asked_later, difference, total_over
from tests.attacks.guards import BOTH, assert_refused, forget_sets
from tests.attacks.rig import KIND, Rig

VICTIM = 4
EVERYONE = range(5)
REST = range(4)
LEAST = 3  # min_contributors of every rig here
NONCE = 8


def without_nonce(_kind: str, payload: bytes) -> bytes:
    return payload[NONCE:]


def static_rig(trust: Trust = Trust.CURIOUS, **changes: Any) -> Rig:
    return Rig(5, trust, min_contributors=LEAST, static=(KIND,), content_of=without_nonce, **changes)


def repeating_rig(**changes: Any) -> Rig:
    return Rig(5, Trust.MALICIOUS, min_contributors=LEAST, content_of=without_nonce, **changes)


def wary_rig(trust: Trust, *, least: int = 2) -> Rig:
    return Rig(5, trust, min_contributors=LEAST, policy_changes={"min_difference": least})


def payload(number: int, content: bytes = b"model") -> bytes:
    return bytes([number]) * NONCE + content


def first_total(rig: Rig, members: Collection[int] = EVERYONE, content: bytes = b"model") -> Vector | None:
    cohort = rig.set_up(threshold=3)
    query = rig.query(cohort, 0, members, payload=payload(0, content))
    return total_over(rig, cohort, query, members)


def next_total(rig: Rig, content: bytes = b"model") -> Vector | None:
    """The next round, in a new session: another nonce, and the victim is left out."""
    return asked_later(rig, VICTIM, threshold=3, payload=payload(1, content), round_number=1)


# (rule, rig, content of the second query, its error)
RULES: dict[str, tuple[Callable[[], Rig], bytes, type[PeerError]]] = {
    "unchanged values": (static_rig, b"another", UnchangedValues),
    "repeated query": (repeating_rig, b"model", RepeatedQuery),
    "min_difference, curious": (lambda: wary_rig(Trust.CURIOUS), b"another", SmallDifference),
    "min_difference, malicious": (lambda: wary_rig(Trust.MALICIOUS), b"another", SmallDifference),
}


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_the_difference_is_the_vector(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_sets(monkeypatch)
    make, content, _error = RULES[rule]
    rig = make()
    assert (difference(first_total(rig), next_total(rig, content)) == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_refuses_the_roster_before_anything_is_masked(rule: str) -> None:
    make, content, error = RULES[rule]
    rig = make()
    first_total(rig)
    with pytest.raises(error):
        next_total(rig, content)
    if error is UnchangedValues:
        assert rig.machines[0].state is ClientState.ASKED  # it may decline, and stays in the session
        rig.machines[0].decline(0)
    else:
        assert_refused(rig.machines[0])


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_refuses_survivors_before_a_share_leaves(rule: str) -> None:
    """The second roster is that of the first sum; then the victim is said to have dropped out."""
    make, content, error = RULES[rule]
    rig = make()
    first_total(rig)
    cohort, second = ask_again(rig, EVERYONE, content)
    with pytest.raises(error):
        rig.send(0, rig.survivors(cohort, 0, REST))
    assert_refused(rig.machines[0])
    assert second.inputs.keys() == set(EVERYONE)


def ask_again(rig: Rig, roster: Collection[int], content: bytes = b"model") -> tuple[Cohort, CheatedSum]:
    rig.restart(seed=b"later")
    cohort = rig.set_up(threshold=3, nonce=b"later".ljust(32))
    second = CheatedSum(
        rig, cohort, rig.query(cohort, 0, roster, payload=payload(1, content), round_number=1)
    )
    second.ask(roster)
    return cohort, second


@pytest.mark.parametrize("rule", RULES)
def test_the_same_clients_are_the_honest_way_out(rule: str) -> None:
    make, content, _error = RULES[rule]
    rig = make()
    first = first_total(rig)
    _cohort, second = ask_again(rig, EVERYONE, content)
    second.reveal(EVERYONE, EVERYONE)
    assert (difference(second.total(EVERYONE), first) == 0).all()


@pytest.mark.parametrize("trust", BOTH)
def test_other_values_are_summed_over_other_clients(trust: Trust) -> None:
    rig = static_rig(trust)
    first_total(rig)
    for vector in rig.vectors.values():
        vector += 1
    assert next_total(rig, b"another") is not None


def test_another_query_is_answered_over_other_clients() -> None:
    rig = repeating_rig()
    first_total(rig)
    assert next_total(rig, b"another model") is not None


def test_a_curious_server_may_repeat_a_query() -> None:
    rig = Rig(5, Trust.CURIOUS, min_contributors=LEAST, content_of=without_nonce)
    first_total(rig)
    assert next_total(rig) is not None


def test_equal_answers_to_different_queries_are_no_reason_to_refuse() -> None:
    """A one-hot error or a tail of zeros is often the same; a refusal would tell the server."""
    rig = Rig(5, Trust.CURIOUS, min_contributors=LEAST)
    first_total(rig)
    assert next_total(rig, b"another") is not None  # with the same vectors


# --- sums that were answered and never confirmed ----------------------------------------------------


def test_unconfirmed_values_are_not_summed_over_other_clients() -> None:
    """The others may have confirmed any part of the roster: this client was not told."""
    rig = static_rig()
    cohort = rig.set_up(threshold=3)
    CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=payload(0))).ask(EVERYONE)
    with pytest.raises(UnchangedValues):
        next_total(rig, b"another")
    _cohort, third = ask_again(rig, EVERYONE, b"third")
    with pytest.raises(UnchangedValues):
        third.reveal(REST, REST)


def test_unconfirmed_values_are_summed_again_over_the_whole_roster() -> None:
    rig = static_rig()
    cohort = rig.set_up(threshold=3)
    CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=payload(0))).ask(EVERYONE)
    _cohort, second = ask_again(rig, EVERYONE)
    second.reveal(EVERYONE, EVERYONE)
    assert second.total(EVERYONE) is not None


def answered_and_given_up(rig: Rig) -> None:
    """Let everybody answer a sum that the server closes before it names the survivors."""
    cohort = rig.set_up(threshold=3)
    CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=payload(0))).ask(EVERYONE)
    for member in EVERYONE:
        rig.send(member, m.GroupClosed(cohort.session, 0).encode())


def test_a_curious_server_may_sum_values_of_a_sum_it_gave_up(tmp_path: Path) -> None:
    """Otherwise one liar, whose dispute ends a sum, would keep all others' values from being summed."""
    rig = static_rig()
    files = with_ledgers(rig, tmp_path)
    answered_and_given_up(rig)
    reopen(rig, files, tmp_path)
    assert next_total(rig, b"another") is not None
    for file in files.values():
        file.close()


def test_a_malicious_server_may_not() -> None:
    """It may have told the others that they are the survivors."""
    rig = static_rig(Trust.MALICIOUS)
    answered_and_given_up(rig)
    with pytest.raises(UnchangedValues):
        next_total(rig, b"another")


def test_a_sum_stays_answered_if_another_one_is_given_up() -> None:
    rig = static_rig(sums=2)
    cohort = rig.set_up(threshold=3)
    CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=payload(0))).ask(EVERYONE)
    for member in EVERYONE:
        rig.send(member, m.GroupClosed(cohort.session, 1).encode())
    with pytest.raises(UnchangedValues):
        next_total(rig, b"another")


NINE, FIRST = range(9), range(5)


def three_of_nine(*, told: Collection[int]) -> Vector | None:
    """Sum unchanged values of nine clients over the first five, three of whom confirm. The two others are
    told of the survivors `told`, which nobody confirms. Then sum eight, of whom others confirm. Return the
    difference of the totals: three clients' values, where four must differ."""
    rig = Rig(9, Trust.MALICIOUS, min_contributors=4, static=(KIND,), content_of=without_nonce)
    cohort = rig.set_up(threshold=3, members=FIRST)
    first = CheatedSum(rig, cohort, rig.query(cohort, 0, FIRST, payload=payload(0)))
    first.ask(FIRST)
    first.reveal([0, 1, 2], FIRST)
    if told:
        first.tell([3, 4], told)
    total = first.total(FIRST)
    rig.restart(seed=b"later")
    cohort = rig.set_up(threshold=5, members=NINE, nonce=b"later".ljust(32))
    query = rig.query(cohort, 0, NINE, payload=payload(1, b"another"), round_number=1)
    second = CheatedSum(rig, cohort, query)
    second.ask(range(8))
    second.reveal([3, 4, 5, 6, 7], range(8))
    return difference(second.total(range(8)), total)


@pytest.mark.parametrize("told", [(), (0, 1, 3, 4), FIRST], ids=["nothing", "false survivors", "the truth"])
def test_survivors_that_nobody_confirmed_do_not_settle_a_sum(told: Collection[int]) -> None:
    with pytest.raises(UnchangedValues):
        three_of_nine(told=told)


def test_if_they_did_the_difference_would_be_of_three_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm = SetLog.confirm

    def at_once(log: SetLog, sum_id: Any, survivors: Any, *, settled: bool = True) -> None:
        confirm(log, sum_id, survivors)

    monkeypatch.setattr(SetLog, "confirm", at_once)
    assert three_of_nine(told=(0, 1, 3, 4)) is not None


def test_a_sum_that_was_confirmed_is_compared_though_it_was_given_up() -> None:
    rig = static_rig()
    cohort = rig.set_up(threshold=3)
    asked = CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=payload(0)))
    asked.ask(EVERYONE)
    asked.reveal(EVERYONE, EVERYONE)
    for member in EVERYONE:
        rig.send(member, m.GroupClosed(cohort.session, 0).encode())
    with pytest.raises(UnchangedValues):
        next_total(rig, b"another")


# --- how much sets have to differ --------------------------------------------------------------------

SEQUENCES = {rule: SumSequence(rule, b"key") for rule in Rule}


@pytest.mark.parametrize("rule", Rule)
def test_sets_are_close_below_the_least_difference(rule: Rule) -> None:
    log, sequence = SetLog(), SEQUENCES[rule]
    log.add(sequence, range(10))
    near, far = [*range(2, 10)], [*range(2, 10), 20]
    assert log.is_close(sequence, near, least=3)
    assert not log.is_close(sequence, far, least=3)
    assert not log.is_close(sequence, range(10), least=3)
    assert not log.is_close(SumSequence(rule, b"another key"), near, least=3)


def test_an_unconfirmed_roster_counts_for_unchanged_values_only() -> None:
    log = SetLog()
    log.answer((b"session", 0), tuple(SEQUENCES.values()), range(10))
    few, many = [*range(5), 20, 21], [*range(5), 20, 21, 22]
    for rule, sequence in SEQUENCES.items():
        assert log.is_close(sequence, few, least=3) is (rule is Rule.STATIC)
        assert not log.is_close(sequence, many, least=3)
        assert not log.is_close(sequence, few, least=3, current=(b"session", 0))


def test_a_set_has_to_differ_from_every_earlier_one() -> None:
    log, sequence = SetLog(), SEQUENCES[Rule.KIND]
    log.add(sequence, [1, 2, 3, 4])
    log.add(sequence, [5, 6, 7, 8])
    assert log.is_close(sequence, [5, 6, 7, 9], least=3)
    assert not log.is_close(sequence, [1, 2, 5, 6], least=3)
    assert sorted(map(sorted, log.confirmed(sequence))) == [[1, 2, 3, 4], [5, 6, 7, 8]]


# --- what is on disk ---------------------------------------------------------------------------------


def with_ledgers(rig: Rig, directory: Path) -> dict[int, ClientLedger]:
    public = {k: rig.identity(k).public if rig.registry else b"" for k in EVERYONE}
    files = {k: ClientLedger.create(directory / str(k), member=k, identity=public[k]) for k in EVERYONE}
    rig.memories.update(files)
    rig.restart()
    return files


def reopen(rig: Rig, files: dict[int, ClientLedger], directory: Path) -> None:
    for member, file in files.items():
        rig.machines[member].leave()
        identity = rig.identity(member).public if rig.registry else b""
        file.close()
        files[member] = ClientLedger.open(directory / str(member), member=member, identity=identity)
        rig.memories[member] = files[member]


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_outlives_a_restart(rule: str, tmp_path: Path) -> None:
    make, content, error = RULES[rule]
    rig = make()
    files = with_ledgers(rig, tmp_path)
    first_total(rig)
    reopen(rig, files, tmp_path)
    with pytest.raises(error):
        next_total(rig, content)
    for file in files.values():
        file.close()


def test_an_unconfirmed_answer_outlives_a_restart(tmp_path: Path) -> None:
    rig = static_rig()
    files = with_ledgers(rig, tmp_path)
    cohort = rig.set_up(threshold=3)
    CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=payload(0))).ask(EVERYONE)
    reopen(rig, files, tmp_path)
    with pytest.raises(UnchangedValues):
        next_total(rig, b"another")
    for file in files.values():
        file.close()


def test_survivors_are_on_disk_before_a_share_leaves(tmp_path: Path) -> None:
    rig = static_rig()
    files = with_ledgers(rig, tmp_path)
    cohort, _second = ask_again(rig, EVERYONE)
    files[0].close()
    with pytest.raises(LedgerError):
        rig.send(0, rig.survivors(cohort, 0, EVERYONE))
    assert_refused(rig.machines[0])


def test_the_ledger_shows_no_values_and_its_key_is_private(tmp_path: Path) -> None:
    rig = static_rig()
    files = with_ledgers(rig, tmp_path)
    first_total(rig)
    key = tag_key_path(tmp_path / "0")
    assert key.stat().st_mode & 0o777 == 0o600
    text = (tmp_path / "0").read_bytes()
    assert key.read_bytes() not in text
    for file in files.values():
        file.close()


@pytest.mark.parametrize("damage", ["missing", "another"])
def test_a_lost_key_is_an_error_and_not_a_fresh_start(damage: str, tmp_path: Path) -> None:
    rig = static_rig()
    files = with_ledgers(rig, tmp_path)
    first_total(rig)
    reopen(rig, files, tmp_path)
    key = tag_key_path(tmp_path / "0")
    key.unlink()
    if damage == "another":
        key.write_bytes(bytes(32))
        key.chmod(0o600)
    with pytest.raises(LedgerError, match="restore"):
        next_total(rig)
    for file in files.values():
        file.close()


def test_two_ledgers_tag_the_same_values_differently(tmp_path: Path) -> None:
    memories: list[Memory] = [VolatileMemory(), ClientLedger.create(tmp_path / "one", member=1)]
    memories.append(ClientLedger.create(tmp_path / "two", member=2))
    tags = {memory.tag(b"values") for memory in memories}
    assert len(tags) == 3
    assert memories[1].tag(b"values") in tags
    for memory in memories[1:]:
        assert isinstance(memory, ClientLedger)
        memory.close()


REALS = LInf(9.0)


def canonical(values: Any, bound: Bound = REALS, name: str = "x") -> bytes:
    part = Part(name=name, size=2, bits=64, bound=bound)
    return _canonical(part, {name: np.array(values)})


def test_the_same_numbers_are_recognised_whatever_their_type() -> None:
    """A client whose count is a float in one kind of sum and an integer in another has one value."""
    assert canonical([0.0, 3.0]) == canonical([-0.0, 3.0]) == canonical([0, 3])
    assert canonical([0, 3]) == canonical([0, 3], Count(9)) == canonical([0, 3], Residue())
    assert canonical([0.5, 3.0]) == canonical(np.array([0.5, 3.0], np.float32))
    large = np.array([[2**63 + 1, 0], [2**63 + 2, 0]], np.uint64)
    assert canonical(large[0], Residue()) != canonical(large[1], Residue())
    assert canonical([0.5, 3.0]) != canonical([0.5, 2.0])


def test_values_of_parts_of_other_names_are_not_compared() -> None:
    """Or the refusal of a client would tell that its one number equals its other number."""
    assert canonical([1, 0], name="smokers") != canonical([1, 0], name="members")


def test_two_equal_parts_of_one_sum_are_two_sequences(tmp_path: Path) -> None:
    spec = SumSpec(parts=tuple(Part(name=name, size=2, bits=32, bound=LInf(9.0)) for name in ("a", "b")))
    params = SessionParams(trust=Trust.CURIOUS, corrupt=1)
    ledgers = {k: ClientLedger.create(tmp_path / str(k), member=k) for k in range(3)}
    for number in range(2):
        server, clients = local_machines(
            table=Table({KIND: spec}), params=params, members=range(3), memories=ledgers, static=[KIND],
            unnoised_sums=9,
        )  # fmt: skip
        session = LocalSession(server, clients, lambda *_: {"a": [0.0, 0.0], "b": [0.0, 0.0]})
        session.open()
        assert session.ask(KIND, bytes([number]), round_number=number).count == 3
        session.end()
    for member, ledger in ledgers.items():
        ledger.close()
        ClientLedger.open(tmp_path / str(member), member=member).close()


def test_a_minority_that_could_reveal_two_sums_is_refused() -> None:
    """Three of seven reveal one sum and the others, which know nothing of it, reveal the next."""
    rig = Rig(7, Trust.CURIOUS, min_contributors=LEAST, static=(KIND,))
    with pytest.raises(SmallThreshold):
        rig.set_up(threshold=3)
    rig.restart(seed=b"again")
    rig.set_up(threshold=4, nonce=b"again".ljust(32))


def test_changed_values_of_a_static_kind_answer_a_repeated_query() -> None:
    rig = static_rig(Trust.MALICIOUS)
    first_total(rig)
    for vector in rig.vectors.values():
        vector += 1
    assert next_total(rig) is not None  # of the same content


@pytest.mark.parametrize("trust", BOTH)
def test_pairwise_rules_do_not_stop_a_server_that_combines_seven_totals(trust: Trust) -> None:
    """Each total is over the four clients off a line of the Fano plane. Only the cap on sums would help."""
    rig = Rig(7, trust, min_contributors=4, static=(KIND,), policy_changes={"min_difference": 4})
    for vector in rig.vectors.values():
        vector >>= 8  # no total wraps around
    sets = [[k for k in range(7) if (k - line) % 7 not in (0, 1, 3)] for line in range(7)]
    totals = []
    for number, members in enumerate(sets):
        rig.restart(seed=b"session %d" % number)
        cohort = rig.set_up(threshold=3, members=members, nonce=bytes([number]) * 32)
        query = rig.query(cohort, 0, members, payload=payload(number), round_number=number)
        totals.append(total_over(rig, cohort, query, members))
    asked = np.array([[member in members for member in range(7)] for members in sets], float)
    solved = np.linalg.solve(asked, np.array(totals, float))
    assert (solved.round() == np.array([rig.vectors[k] for k in range(7)])).all()


def test_positions_of_another_cohort_are_not_compared_as_ids() -> None:
    """The second cohort lacks client 0: its positions are those of other clients."""
    rig = wary_rig(Trust.CURIOUS, least=2)
    first_total(rig)
    rig.restart(seed=b"later")
    cohort = rig.set_up(threshold=3, members=range(1, 5), nonce=b"later".ljust(32))
    query = rig.query(cohort, 0, range(1, 5), payload=b"later", round_number=1)
    with pytest.raises(SmallDifference):
        rig.send(1, query)
    assert PositionSet(range(4)).pack(4) == m_bitmap(query)


def m_bitmap(frame: bytes) -> bytes:
    query = m.decode(frame, sender="server", limit=1 << 20)
    assert isinstance(query, m.Query)
    return query.roster

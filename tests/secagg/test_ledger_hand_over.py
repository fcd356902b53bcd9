"""A ledger follows its owner to a new key, with everything that it records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from secagg.client_budget import Budget
from secagg.errors import DamagedLedger, ForeignLedger, RepeatedQuery
from secagg.hand_over import HandOver, HandOverSigner
from secagg.keys import Identity
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.ledger.file import LedgerFile
from tests.secagg.ledgers import answer

A, B, C, AUTHORITY, THIEF = (Identity.from_secret(bytes([n]) * 32) for n in range(5))
BUDGET = Budget()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The ledger of client 5 with key A, which has answered once."""
    path = tmp_path / "ledger"
    with ClientLedger.create(path, member=5, identity=A.public) as ledger:
        ledger.remember_answer(answer(1), BUDGET)
        ledger.remember_registry(4, b"d" * 32)
    return path


def opened(path: Path, key: Identity, statements: Sequence[HandOver] = (), member: int = 5) -> ClientLedger:
    return ClientLedger.open(
        path, member=member, identity=key.public, hand_overs=statements, authority=AUTHORITY.public
    )


@pytest.mark.parametrize(
    "statement",
    [HandOver.sign(5, A, B.public), HandOver.sign_as_authority(5, A.public, B.public, AUTHORITY)],
    ids=["old key", "authority"],
)
def test_all_that_it_records_follows_its_owner(path: Path, statement: HandOver) -> None:
    with opened(path, A) as before:
        spend = before.spend
    with opened(path, B, [statement]) as ledger:
        assert ledger.spend == spend
        assert ledger.spend.charge > 0
        assert ledger.registry == (4, b"d" * 32)
        assert ledger.last_round("g") == 1
        with pytest.raises(RepeatedQuery):
            ledger.remember_answer(answer(1), BUDGET)
        ledger.check_owner(5, B.public)
        with pytest.raises(ForeignLedger):
            ledger.check_owner(5, A.public)
    with opened(path, B):
        pass
    with pytest.raises(ForeignLedger):
        opened(path, A)
    reading = read_ledger(path)
    assert reading.owner.identity == B.public
    assert reading.spend == spend


def test_a_chain_of_hand_overs_is_followed(path: Path) -> None:
    statements = [HandOver.sign(5, B, C.public), HandOver.sign(5, A, B.public)]
    with opened(path, C, statements) as ledger:
        assert ledger.registry[0] == 4
    assert [row.body["entry"] for row in read_ledger(path).rows].count("hand-over") == 2


@pytest.mark.parametrize(
    "statement",
    [
        None,
        HandOver.sign(6, A, B.public),
        HandOver.sign("server", A, B.public),
        HandOver.sign(5, C, B.public),
        HandOver.sign(5, A, C.public),
        HandOver.sign_as_authority(5, A.public, B.public, THIEF),
        HandOver(5, A.public, B.public, HandOverSigner.OLD_KEY, bytes(64)),
    ],
    ids=["none", "another member", "server", "another old key", "another new key", "thief", "unsigned"],
)
def test_without_a_hand_over_of_its_own_it_stays_with_its_old_key(
    path: Path, statement: HandOver | None
) -> None:
    with pytest.raises(ForeignLedger, match="belongs to client 5 with key"):
        opened(path, B, [] if statement is None else [statement])
    with opened(path, A) as ledger:
        assert ledger.registry[0] == 4


def test_a_hand_over_is_of_no_use_to_another_member(path: Path) -> None:
    with pytest.raises(ForeignLedger):
        opened(path, B, [HandOver.sign(6, A, B.public)], member=6)


def test_a_key_that_was_handed_over_never_comes_back(path: Path) -> None:
    forward, back = HandOver.sign(5, A, B.public), HandOver.sign(5, B, A.public)
    opened(path, B, [forward]).close()
    with pytest.raises(ForeignLedger, match="handed over by this key before"):
        opened(path, A, [back])
    with pytest.raises(ForeignLedger):  # a replay
        opened(path, C, [forward, HandOver.sign(5, A, C.public)])
    opened(path, B).close()


def test_a_statement_that_is_offered_counts_when_the_new_key_is_used(path: Path) -> None:
    with opened(path, A) as ledger:
        ledger.offer([HandOver.sign(5, A, B.public)])
        ledger.check_owner(5, A.public)
        ledger.check_owner(5, b"")
        assert read_ledger(path).owner.identity == A.public
        ledger.check_owner(5, B.public)
        assert read_ledger(path).owner.identity == B.public


def test_two_processes_agree_on_the_owner(path: Path) -> None:
    with opened(path, A) as first, opened(path, B, [HandOver.sign(5, A, B.public)]) as second:
        second.check_owner(5, B.public)
        with pytest.raises(ForeignLedger):
            first.check_owner(5, A.public)


def test_another_hand_over_may_come_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = LedgerFile.append

    def late(file: LedgerFile, make: object) -> None:
        monkeypatch.setattr(LedgerFile, "append", append)
        opened(path, C, [HandOver.sign(5, A, C.public)]).close()
        append(file, make)  # type: ignore[arg-type]

    monkeypatch.setattr(LedgerFile, "append", late)
    with pytest.raises(ForeignLedger, match="another process"):
        opened(path, B, [HandOver.sign(5, A, B.public)])
    assert read_ledger(path).owner.identity == C.public


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "zz",
        HandOver.sign(6, A, B.public).encode().hex(),
        HandOver.sign(5, B, C.public).encode().hex(),
        HandOver(5, A.public, B.public, HandOverSigner.OLD_KEY, bytes(64)).encode().hex(),
    ],
)
def test_a_row_with_a_wrong_statement_is_damage(path: Path, statement: str) -> None:
    file = LedgerFile(path, lambda _row: None)
    file.append(lambda: {"entry": "hand-over", "statement": statement})
    file.close()
    with pytest.raises(DamagedLedger):
        opened(path, B)
    with pytest.raises(DamagedLedger):
        read_ledger(path)


def test_a_server_hands_over_its_ledger_too(tmp_path: Path) -> None:
    path = tmp_path / "server"
    ServerLedger.create(path, identity=A.public).close()
    statement = HandOver.sign("server", A, B.public)
    with ServerLedger.open(path, identity=A.public) as ledger:
        with pytest.raises(ForeignLedger):
            ledger.check_owner(B.public)
        ledger.offer([statement])
        ledger.check_owner(B.public)
    by_authority = HandOver.sign_as_authority("server", B.public, C.public, AUTHORITY)
    ServerLedger.open(path, identity=C.public, hand_overs=[by_authority], authority=AUTHORITY.public).close()
    with pytest.raises(ForeignLedger):
        ServerLedger.open(path, identity=B.public, hand_overs=[statement])

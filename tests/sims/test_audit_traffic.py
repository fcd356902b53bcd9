"""Bytes that were counted on their way are those of the protocol's closed form, sum by sum, to the byte."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.order_statistics import MedianByCounts
from protocols.rfa import RFA
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.messages import GroupClosed
from secagg.trust_levels import Trust
from sims.audit.audit_result import Audit
from sims.audit.audit_run import audit_run
from sims.audit.byte_comparison_and_growth import Load, growth
from sims.audit.expected_bytes import Sizes, blob_bytes, number_bytes, set_up, sizes_of
from sims.records.sum_records import Exclusion, SessionRecord
from sims.runtime import DropoutSchedule, Setting
from tests.sims.audit_run import DIM, make_run, noisy


def missing(*places: tuple[int, Stage, int, int]) -> DropoutSchedule:
    """Whom it misses, at which stage of which sum of which round."""
    return lambda *place: place in places


def in_set_up(stage: Stage, members: Collection[int]) -> DropoutSchedule:
    """Some are missing from that stage of the first set-up."""
    return lambda member, where, turn, index: (where, turn, index) == (stage, 0, -1) and member in members


def absent_in(stage: Stage, members: Collection[int], *, sums: int = 3) -> DropoutSchedule:
    """Some are missing from that stage of every sum, in the second round and the fourth."""
    return lambda member, where, turn, index: (
        where is stage and member in members and turn % 2 == 1 and 0 <= index < sums
    )


def stages(audit: Audit) -> dict[str, Any]:
    assert audit.traffic is not None
    return {row.stage: row for row in audit.traffic.stages}


def check_exact(audit: Audit) -> None:
    traffic = audit.traffic
    assert traffic is not None
    assert traffic.differences == ()
    assert traffic.exact == traffic.sums > 0
    for row in traffic.stages:
        assert (row.up, row.down) == (row.expected_up, row.expected_down)


def few(*, sums: int = 6, **more: Any) -> Setting:
    """Sessions of few sums, whose keys are soon agreed."""
    return Setting(sums=sums, **more)


def hybrid(**more: Any) -> Setting:
    return few(key_agreement=KeyAgreement.HYBRID, **more)


RFA3 = RFA(dim=DIM, clients=8, weighted=False)
CASES: dict[str, tuple[AnyAlgorithm, Setting]] = {
    "complete": (FedAvg(dim=DIM, clients=8, clip=1.0), few()),
    "malicious": (FedAvg(dim=DIM, clients=8, clip=1.0), few(trust=Trust.MALICIOUS)),
    "group that loses somebody at the start": (
        RFA3, few(dropout=0.4, dropouts=absent_in(Stage.MASK, range(3), sums=1)),
    ),
    "group that is cut short": (
        RFA3, few(dropout=0.4, dropouts=missing((2, Stage.MASK, 0, 1), (3, Stage.MASK, 1, 2))),
    ),
    "malicious, group that is cut short": (
        RFA3,
        few(trust=Trust.MALICIOUS, dropout=0.2, dropouts=missing((2, Stage.MASK, 0, 1))),
    ),
    "too few reveal": (
        FedAvg(dim=DIM, clients=8, clip=1.0), few(dropout=0.1, dropouts=absent_in(Stage.REVEAL, range(6))),
    ),
    "some do not reveal": (RFA3, few(dropout=0.4, dropouts=absent_in(Stage.REVEAL, range(3)))),
    "too few confirm": (
        FedAvg(dim=DIM, clients=8, clip=1.0),
        few(trust=Trust.MALICIOUS, dropouts=absent_in(Stage.CONFIRM, range(6))),
    ),
    "some do not confirm": (
        RFA3, few(trust=Trust.MALICIOUS, dropout=0.2, dropouts=absent_in(Stage.CONFIRM, range(2))),
    ),
    "somebody deals no shares": (
        FedAvg(dim=DIM, clients=8, clip=1.0),
        few(dropout=0.4, dropouts=missing((1, Stage.SHARE, 0, -1), (6, Stage.ADVERTISE, 0, -1))),
    ),
    "noise": (noisy(8), few()),
    "removable noise, nobody drops": (noisy(8, dropouts=3, removable=True), few(dropout=0.3)),
    "removable noise, some drop": (
        noisy(8, dropouts=3, removable=True), few(dropout=0.3, dropouts=absent_in(Stage.MASK, range(2))),
    ),
    "malicious, removable noise": (
        noisy(8, dropouts=2, removable=True),
        few(trust=Trust.MALICIOUS, dropout=0.15, dropouts=absent_in(Stage.MASK, range(1))),
    ),
    "few sums a session": (RFA3, few(sums=3)),
    "ring": (FedAvg(dim=DIM, clients=30, clip=1.0), few(corrupt=1, dropout=0.2, graph="ring")),
    "ring, group that loses somebody": (
        RFA(dim=DIM, clients=30, weighted=False),
        few(corrupt=1, dropout=0.2, graph="ring", dropouts=absent_in(Stage.MASK, range(5), sums=1)),
    ),
    "ring, some do not reveal": (
        RFA(dim=DIM, clients=30, weighted=False),
        few(corrupt=1, dropout=0.2, graph="ring", dropouts=absent_in(Stage.REVEAL, range(4))),
    ),
    "ring, removable noise": (
        noisy(30, dropouts=6, removable=True),
        few(corrupt=0, dropout=0.2, graph="ring", dropouts=absent_in(Stage.MASK, range(5))),
    ),
    "ring, some deal no shares": (
        FedAvg(dim=DIM, clients=30, clip=1.0),
        few(corrupt=1, dropout=0.2, graph="ring", dropouts=in_set_up(Stage.SHARE, range(4))),
    ),
    "hybrid": (RFA3, hybrid()),
    "hybrid, malicious": (RFA3, hybrid(trust=Trust.MALICIOUS)),
    "hybrid, removable noise": (
        noisy(8, dropouts=3, removable=True), hybrid(dropout=0.3, dropouts=absent_in(Stage.MASK, range(2))),
    ),
}  # fmt: skip
# Drop-outs at every stage, with both key agreements: the same clients in the second round and the fourth, or
# in set-up.
AWAY: dict[Stage, tuple[int, ...]] = {
    Stage.ADVERTISE: (6,),
    Stage.SHARE: (1, 4),
    Stage.DEPOSIT: (2, 3),
    Stage.MASK: (0, 5),
    Stage.CONFIRM: (1,),
    Stage.REVEAL: (2, 7),
}
SHAPES: dict[str, dict[str, Any]] = {
    "curious": {"dropout": 0.4},
    "malicious": {"trust": Trust.MALICIOUS, "dropout": 0.2},
    "ring": {"corrupt": 1, "dropout": 0.2, "graph": "ring"},
}


@pytest.mark.parametrize("agreement", KeyAgreement)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stage", AWAY, ids=lambda stage: stage.value)
def test_drop_outs_of_every_stage_are_exact(
    agreement: KeyAgreement, shape: str, stage: Stage, tmp_path: Path
) -> None:
    """Under both trust levels and on both graphs. Where there is no such stage, nobody drops out of it."""
    clients = 30 if shape == "ring" else 12
    place = in_set_up if stage in (Stage.ADVERTISE, Stage.SHARE, Stage.DEPOSIT) else absent_in
    setting = few(key_agreement=agreement, dropouts=place(stage, AWAY[stage]), **SHAPES[shape])
    algorithm = FedAvg(dim=DIM, clients=clients, clip=1.0)
    audit = audit_run(make_run(tmp_path / "run", algorithm, setting))
    check_exact(audit)
    assert audit.intact, audit.integrity.problems
    exists = {
        Stage.DEPOSIT: agreement is KeyAgreement.HYBRID,
        Stage.CONFIRM: setting.trust is Trust.MALICIOUS,
    }
    missed = {each.stage: each.clients for each in audit.losses.missed}
    assert missed == ({stage.value: len(AWAY[stage])} if exists.get(stage, True) else {})
    assert ("deposit" in stages(audit)) == exists[Stage.DEPOSIT]
    assert len(audit.releases) == 2


@pytest.mark.parametrize("name", CASES)
def test_measured_bytes_are_those_of_the_closed_form(name: str, tmp_path: Path) -> None:
    algorithm, setting = CASES[name]
    audit = audit_run(make_run(tmp_path / "run", algorithm, setting))
    check_exact(audit)
    assert audit.subject.key_agreement == ("x25519+ml-kem-768" if "hybrid" in name else "x25519")
    assert audit.subject.graph == ("ring" if "ring" in name else "complete")
    assert audit.intact, audit.integrity.problems
    assert bool(audit.losses.failed) == any(text in name for text in ("cut short", "too few", "do not"))


@pytest.mark.slow
def test_many_sums_of_many_rounds_in_one_session(tmp_path: Path) -> None:
    """Indices and rounds beyond 127 take one more byte."""
    algorithm = MedianByCounts(dim=DIM, clients=4, reach=1.0, steps=30)
    audit = audit_run(make_run(tmp_path / "run", algorithm, rounds=5))
    check_exact(audit)
    assert len(audit.releases) == 150


def test_bytes_that_were_not_sent_are_noticed(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", RFA3, few(), rounds=2)
    lines = (path / "sums.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    row["bytes_up"]["reveal"] += 1
    (path / "sums.jsonl").write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")

    traffic = audit_run(path).traffic
    assert traffic is not None
    assert traffic.exact == traffic.sums - 1
    assert traffic.differences == (
        f"residuals in round 2: {row['bytes_up']['reveal']:,} bytes up (reveal), but the protocol says "
        f"{row['bytes_up']['reveal'] - 1:,}",
    )


def test_clients_are_told_that_a_sum_is_cut_off(tmp_path: Path) -> None:
    """A server that is stopped in a sum has no total, and knows of no failure."""
    path = make_run(tmp_path / "run", RFA3, few(), rounds=2)
    lines = (path / "sums.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    told = len(GroupClosed(bytes(32), row["sum"]).encode())
    row["count"] = None
    row["bytes_down"]["reveal"] += told * row["frames_down"]["reveal"]
    row["frames_down"]["reveal"] *= 2
    (path / "sums.jsonl").write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")
    traffic = audit_run(path).traffic
    assert traffic is not None
    assert traffic.differences == ()


def test_bytes_per_client_beside_federated_averaging(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "run", RFA3, few(), rounds=3))
    traffic = audit.traffic
    assert traffic is not None
    assert traffic.up_per_client * 8 == traffic.up == sum(row.up for row in traffic.stages)
    assert traffic.fedavg_up == traffic.fedavg_down == 4 * DIM * 3


def test_nothing_is_sent_over_a_plain_channel(tmp_path: Path) -> None:
    assert audit_run(make_run(tmp_path / "run", RFA3, plain=True)).traffic is None


# --- set-up -----------------------------------------------------------------------------------------


def session(*, told: int, **more: Any) -> SessionRecord:
    """A set-up of eight clients of whom seven dealt shares, and the frames that were sent to them then."""
    record = SessionRecord(
        session=0,
        round=0,
        failure=None,
        members=8,
        neighbours=7,
        threshold=5,
        sums=3,
        seeds=0,
        frames_up={"advertise": 8, "share": 7},
        exchanged=((6, 7, 0),),
        frames_down={"advertise": 8, "share": told},
    )
    return replace(record, **more)


def test_a_client_that_dies_after_it_has_heard_the_keys() -> None:
    sizes = sizes_of(session(told=14), "curious_server")
    length = 8 * sizes.keys + 7 * sizes.delivery(6)
    assert set_up(session(told=15), sizes)[1]["share"] == length
    assert set_up(session(told=14), sizes)[1]["share"] == length - sizes.keys


@pytest.mark.parametrize(("delivered", "known"), [(7, True), (5, True), (6, False)])
def test_clients_die_before_their_delivery_or_after_it(delivered: int, known: bool) -> None:
    """Two of seven make no deposit: a process gets its delivery first, a simulated client does not."""
    frames = {"advertise": 8, "share": 8, "deposit": delivered}
    record = session(told=8, exchanged=((6, 7, 5),), frames_down=frames)
    sizes = sizes_of(record, "curious_server", "x25519+ml-kem-768")
    up, down = set_up(record, sizes)
    assert up["deposit"] == 5 * sizes.deposit(6)
    assert down == {
        "advertise": 8 * sizes.invitation,
        "share": 8 * sizes.keys,
        "deposit": delivered * sizes.delivery(6) if known else None,
    }


@pytest.mark.parametrize(
    "why",
    [
        {"failure": "too few", "neighbours": None, "threshold": None},
        {"exclusions": (Exclusion(3, "FalseReport", "reports more dealers than may lie", True),)},
    ],
)
def test_what_cannot_be_known_is_not_made_up(why: dict[str, Any]) -> None:
    record = session(told=8, **why)
    unknown = {"advertise": None, "share": None, "deposit": None}
    assert set_up(record, sizes_of(record, "curious_server")) == (unknown, unknown)


# --- lengths ----------------------------------------------------------------------------------------


WORKED = {  # of 100 clients and 3 sums: docs/protocol.md, section 15
    ("curious_server", "x25519"): (98, 267, 22841, 26033, 24790, None, 4846, 4961),
    ("malicious_server", "x25519"): (132, 332, 29241, 26161, 31126, None, 4910, 5025),
    ("curious_server", "x25519+ml-kem-768"): (109, 1452, 141243, 133747, 132504, 19050, 4846, 4961),
    ("malicious_server", "x25519+ml-kem-768"): (143, 1516, 147643, 133875, 138840, 19114, 4910, 5025),
}


@pytest.mark.parametrize(("trust", "agreement"), WORKED)
def test_the_worked_example_of_the_documentation(trust: str, agreement: str) -> None:
    signed = trust == "malicious_server"
    sizes = Sizes(
        trust=trust,
        signed=signed,
        key_agreement=agreement,
        members=100,
        neighbours=99,
        threshold=51,
        sums=3,
        seeds=0,
    )
    found = (sizes.invitation, sizes.advertisement, sizes.keys, sizes.shares, sizes.delivery(99))
    deposit = sizes.deposit(99) if sizes.is_hybrid else None
    sums = (sizes.masked(0, 4008, 99), sizes.reveal(0, 100, 100, 0))
    assert (*found, deposit, *sums) == WORKED[trust, agreement]
    assert sizes.query(0, 0, "update", 1) == 64
    assert sizes.survivors(0) == 53
    assert (sizes.confirmation(0), sizes.confirmations(0, 100)) == (104, 6841)


@pytest.mark.parametrize(
    ("value", "length"), [(0, 1), (127, 1), (128, 2), (256, 3), (1 << 16, 5), (1 << 32, 9)]
)
def test_whole_numbers(value: int, length: int) -> None:
    assert number_bytes(value) == length


@pytest.mark.parametrize(("content", "length"), [(0, 2), (255, 257), (256, 259), (1 << 16, (1 << 16) + 5)])
def test_byte_strings(content: int, length: int) -> None:
    assert blob_bytes(content) == length


# --- growth -----------------------------------------------------------------------------------------


def test_a_line_through_several_sizes() -> None:
    loads = [Load(m, 100, 70 * m * (m.bit_length() - 1) + 5 * m * 100) for m in (16, 64, 256, 1024)]
    found = growth(loads)
    assert found is not None
    assert found.log_coefficient == pytest.approx(70)
    assert found.size_coefficient == pytest.approx(5)
    assert found.worst < 1e-9


def test_what_grows_with_the_square_is_no_such_line() -> None:
    found = growth([Load(m, 1, 10.0 * m * m) for m in (16, 64, 256)])
    assert found is not None
    assert found.worst > 0.1


def test_through_one_size_goes_every_line() -> None:
    assert growth([Load(16, 1, 10.0), Load(16, 1, 12.0)]) is None

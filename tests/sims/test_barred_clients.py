"""Clients that lie in a simulation are found out, recorded, and invited no more: not even after a restart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.run import Run
from secagg.errors import CorruptTotal, Disputed
from secagg.hybrid_keys import KeyAgreement
from secagg.ledger import read_ledger
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.audit.audit_run import audit_run
from sims.cli import main
from sims.records import RunDirectory
from sims.records.sum_records import Exclusion, SessionRecord, SumHistory, SumRecord
from sims.report import page, read_runs
from sims.runtime import DropoutLaw, SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.processes import processes_sum
from sims.simulation import simulate
from sims.simulation.simulate import SimulationStopped
from tests.sims.lying_clients import LIAR, lying, lying_factory
from tests.sims.process_clients import CLIENTS, DIM, learners
from tests.sims.small_runs import SECURE, Gone, crash, settings
from tests.sims.test_processes import Lines, opened, outcome

FEDAVG = FedAvg(dim=DIM, clients=CLIENTS, clip=10.0)
CHANNELS = ("secure", pytest.param("processes", marks=pytest.mark.slow))
OTHERS = CLIENTS - 1


@contextmanager
def channel_with_liar(kind: str, lie: str, **more: Any) -> Iterator[SessionChannel]:
    """A channel to clients of whom client 2 lies."""
    setting = Setting(**{"insecure_seed": b"liars", "dropout": 0.34, "sums": 4, "corrupt": 1, **more})
    if kind == "secure":
        with lying(lie):
            channel = secure_sum(FEDAVG, learners(), setting)
            yield channel
            channel.close()
        return
    channel = processes_sum(FEDAVG, learners(), setting, clients=lying_factory(lie), workers=2)
    try:
        yield channel
    finally:
        channel.close()


def run_of(channel: SessionChannel, algorithm: AnyAlgorithm = FEDAVG) -> Run[Any]:
    return Run(algorithm, channel, algorithm.start(np.zeros(DIM)))


def sessions(log: Lines) -> list[SessionRecord]:
    return [each for each in log.lines if isinstance(each, SessionRecord)]


def sums(log: Lines) -> list[SumRecord]:
    return [each for each in log.lines if isinstance(each, SumRecord)]


@pytest.mark.parametrize("kind", CHANNELS)
def test_a_false_count_costs_one_round_and_the_liars_place(kind: str) -> None:
    log, barred = Lines(), set[int]()
    with channel_with_liar(kind, "count", log=log, barred=barred) as channel:
        run = run_of(channel)
        reports = [run.round() for _ in range(3)]
    assert isinstance(reports[0].failure, CorruptTotal)
    assert [report.clients for report in reports[1:]] == [OTHERS] * 2
    assert barred == {LIAR}
    assert [record.members for record in sessions(log)] == [CLIENTS, OTHERS]
    (exclusion,) = sums(log)[0].exclusions
    assert exclusion == Exclusion(LIAR, "FalseCount", "a masked count that is not 1", True)
    assert [record.exclusions for record in sums(log)[1:]] == [(), ()]


def test_a_repeated_query_leaves_out_enough_clients_besides_the_liar() -> None:
    """Under `malicious_server`, all clients confirmed the set of the sum that failed. The same query again is
    over clients that differ from it by three, of whom the liar is one; the next one is over all others."""
    algorithm = FedAvg(dim=DIM, clients=20, clip=10.0)
    setting = Setting(trust=Trust.MALICIOUS, corrupt=1, dropout=0.3, insecure_seed=b"liars")
    with lying("count"):
        channel = secure_sum(algorithm, learners(20), setting)
        run = run_of(channel, algorithm)
        reports = [run.round() for _ in range(3)]
        channel.close()
    assert isinstance(reports[0].failure, CorruptTotal)
    assert [report.clients for report in reports] == [0, 17, 19]
    assert setting.barred == {LIAR}


def test_sums_go_on_as_if_the_liar_had_never_been() -> None:
    """The first round fails, so the second one is the first of a run without the liar, to the last bit."""
    honest = {member: learner for member, learner in learners().items() if member != LIAR}
    for learner in honest.values():
        learner.calls = 1  # they trained in the round that failed
    plain = insecure_plain_sum(
        FEDAVG, honest, Setting(insecure_seed=b"liars", sums=4, corrupt=1, dropout=0.3)
    )
    expected = run_of(plain)
    with channel_with_liar("secure", "count", dropout=0.3) as channel:
        run = run_of(channel)
        for _ in range(3):
            run.round()
    for _ in range(2):
        expected.round()
    assert np.allclose(run.model, expected.model, atol=1e-6)


@pytest.mark.parametrize("kind", CHANNELS)
def test_both_sides_of_a_dispute_are_barred(kind: str) -> None:
    log, barred = Lines(), set[int]()
    with channel_with_liar(kind, "word", log=log, barred=barred) as channel:
        run = run_of(channel)
        reports = [run.round() for _ in range(2)]
    assert isinstance(reports[0].failure, Disputed)
    assert reports[1].clients == CLIENTS - 2
    assert barred == {0, LIAR}
    found = {each.member: (each.error, each.barred) for each in sums(log)[0].exclusions}
    assert found == {0: ("Dispute", True), LIAR: ("Dispute", True)}


def test_a_wrong_share_costs_no_round() -> None:
    log, barred = Lines(), set[int]()
    with channel_with_liar("secure", "share", trust=Trust.MALICIOUS, log=log, barred=barred) as channel:
        run = run_of(channel)
        reports = [run.round() for _ in range(2)]
    assert [report.clients for report in reports] == [CLIENTS, OTHERS]
    assert [each.error for each in sums(log)[0].exclusions] == ["WrongShare"]
    assert barred == {LIAR}


@pytest.mark.parametrize("kind", CHANNELS)
def test_a_false_deposit_is_found_in_set_up(kind: str) -> None:
    log, barred = Lines(), set[int]()
    more = {"key_agreement": KeyAgreement.HYBRID, "log": log, "barred": barred}
    with channel_with_liar(kind, "deposit", **more) as channel:
        run = run_of(channel)
        assert [run.round().clients for _ in range(2)] == [OTHERS] * 2
    (exclusion,) = sessions(log)[0].exclusions
    assert (exclusion.member, exclusion.error, exclusion.barred) == (LIAR, "ManyDisputes", True)
    assert [record.members for record in sessions(log)] == [CLIENTS, OTHERS]


def test_channels_to_the_same_clients_share_whom_they_bar() -> None:
    barred = {LIAR, 4}
    channel = secure_sum(FEDAVG, learners(), Setting(barred=barred, dropout=0.3))
    run = run_of(channel)
    assert run.round().clients == CLIENTS - 2
    barred.add(0)
    assert run.round().clients == CLIENTS - 3
    channel.close()


# --- hybrid keys ---------------------------------------------------------------------------------------


def away(member: int, stage: Stage, number: int, _sum: int) -> bool:
    """Somebody is missing from every stage, in one round or another."""
    return (member, stage, number) in {
        (0, Stage.ADVERTISE, 0), (1, Stage.SHARE, 1), (2, Stage.DEPOSIT, 2),
        (3, Stage.MASK, 3), (4, Stage.CONFIRM, 4), (5, Stage.REVEAL, 5),
    }  # fmt: skip


@pytest.mark.parametrize("trust", Trust)
def test_with_hybrid_keys_all_channels_agree_whoever_is_missing(trust: Trust) -> None:
    more: dict[str, Any] = {
        "insecure_seed": b"hybrid", "dropout": 0.33, "trust": trust, "dropouts": away,
        "key_agreement": KeyAgreement.HYBRID, "sums": 2, "each_round": True,
    }  # fmt: skip
    logs = Lines(), Lines(), Lines()
    plain = outcome(FEDAVG, insecure_plain_sum(FEDAVG, learners(), Setting(**more, log=logs[0])), 6)
    secure = outcome(FEDAVG, secure_sum(FEDAVG, learners(), Setting(**more, log=logs[1])), 6)
    assert secure[:3] == plain[:3]
    assert logs[0].counts() == logs[1].counts()
    assert [clients for clients, _, _ in secure[1]] == [5, 5, 5, 5, 6, 6]
    with opened(FEDAVG, **more, log=logs[2]) as channel:
        assert outcome(FEDAVG, channel, 6) == secure
    assert logs[2].counts() == logs[1].counts()


def test_no_law_makes_a_client_drop_out_of_set_up() -> None:
    law = DropoutLaw(seed=b"law", training=0.999, between=0.999, group=0.999, reveal=0.999)
    dropped = {stage for stage in Stage if any(law.missing(k, stage, 0, 0, later=False) for k in range(9))}
    assert dropped == {Stage.MASK, Stage.CONFIRM, Stage.REVEAL}


# --- runs that are resumed -----------------------------------------------------------------------------

RUN = {"channel": {**SECURE, "corrupt": 1}, "rounds": 4}


def members(run: RunDirectory) -> list[int]:
    history = SumHistory.of(run.read_lines("sums.jsonl"), "sums.jsonl")
    return [record.members for record in history.sessions]


@pytest.mark.parametrize("seeded", [True, False])
def test_a_resumed_run_knows_whom_it_has_barred(
    seeded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so do its audit and its report."""
    given, run = settings(**RUN, insecure_seed=seeded), RunDirectory(tmp_path / "run")
    with lying("count"):
        with pytest.raises(SimulationStopped):
            simulate(given, directory=run, stop=lambda: True)
        assert members(run) == [5]
        simulate(given, directory=run, resume=True)
    assert set(members(run)[1:]) == {4}
    audit = audit_run(run)
    assert [(each.round, each.member, each.error) for each in audit.losses.excluded] == [
        (1, LIAR, "FalseCount")
    ]
    assert audit.intact
    assert audit.sound
    assert main(["audit", str(run.path)]) == 0
    told = (
        "client 2 was excluded in round 1 (update), FalseCount: a masked count that is not 1; it is invited"
    )
    assert told in capsys.readouterr().out
    text = page(read_runs(run.path))
    (table,) = re.findall(r'<table[^>]*id="excluded".*?</table>', text, re.DOTALL)
    assert re.findall("<td[^>]*>(?:<[^>]*>)*([^<]*)", table)[:3] == ["update", "2", "FalseCount"]


@pytest.mark.parametrize("seeded", [True, False])
def test_a_lie_in_a_round_that_was_cut_off_is_not_forgotten(seeded: bool, tmp_path: Path) -> None:
    """With a seed, the round is repeated with the liar, and all is found out again. Without, the ledger alone
    knows of the lie."""
    given, run = settings(**RUN, insecure_seed=seeded), RunDirectory(tmp_path / "run")

    def in_round_two(moment: Any) -> None:
        if moment.done == 1 and moment.stage == "mask":
            crash()

    with pytest.raises(Gone):
        simulate(given, directory=run, watch=in_round_two)
    with lying("share"), pytest.raises(Gone):
        simulate(given, directory=run, resume=True, watch=_after_unmasking())
    barred = [row.body["peer"] for row in read_ledger(run / "ledger").rows if row.body["entry"] == "barred"]
    assert barred == [LIAR]
    with lying("share") if seeded else nullcontext():
        simulate(given, directory=run, resume=True)
    assert members(run) == ([5, 5, 4] if seeded else [5, 4])


def _after_unmasking() -> Any:
    """Crashes once a liar was convicted while shares were revealed, before the round is over."""

    def watch(moment: Any) -> None:
        if moment.survivors is not None and moment.stage == "reveal":
            crash()

    return watch

"""Drills: that what is killed is what was asked for, and that the report tells what happened."""

import json
import os
import signal
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import trio

from secagg import Identity, Trust
from secagg import messages as m
from secagg.errors import ParameterError
from secagg.hybrid_keys import KeyAgreement
from secagg.session_params import SessionParams
from sims.cli import main
from sims.coordination.network_session import NetworkSession
from sims.drill import run
from sims.drill.client_worker import DrillClient, DrillWorkerConfig, numbers, plain_sum
from sims.drill.config import DrillConfig
from sims.drill.kill_schedule import SETUP, ScheduledKill, draw_kills, point_of, protocol_points
from sims.drill.report import DrillReport, SumOutcome, fingerprint
from sims.drill.run import Drill, DrillProgress, run_drill

SETTING = DrillConfig(
    clients=8,
    dim=5,
    kill=Fraction(1, 4),
    params=SessionParams(trust=Trust.MALICIOUS, corrupt=1, sums=2),
    seed=3,
)


def silent(_what: DrillProgress) -> None:
    pass


# --- the real thing ----------------------------------------------------------------------------------


def check(report: DrillReport) -> None:
    """Nothing is wrong but what was made to go wrong, looked at without the report's own verdict."""
    setting = report.setting
    for each in report.sums:
        if each.aborted:
            assert each.survivors is not None
            assert each.threshold is not None
            assert each.survivors < each.threshold
            assert each.total_sha256 is None
        else:
            total = plain_sum(setting, each.contributor_ids, each.sum)
            assert each.total_sha256 == each.expected_sha256 == fingerprint(total)
            assert each.contributors == len(each.contributor_ids) >= report.threshold
    assert len(report.sums) == setting.sums
    assert (report.hung, report.orphans, report.released_after_abort) == (0, 0, 0)
    assert (report.crashed, report.refused) == (0, 0)
    assert report.as_promised


@pytest.mark.parametrize("trust", list(Trust))
def test_killed_clients_leave_exact_sums(trust: Trust) -> None:
    report = run_drill(replace(SETTING, params=replace(SETTING.params, trust=trust)), silent)

    check(report)
    assert report.killed == 2
    assert report.aborted == 0


@pytest.mark.parametrize("trust", [Trust.CURIOUS, pytest.param(Trust.MALICIOUS, marks=pytest.mark.slow)])
def test_hybrid_keys_with_kills_in_every_stage(trust: Trust) -> None:
    """One client is killed before its deposit, one while it sends the deposit."""
    params = replace(SETTING.params, trust=trust, key_agreement=KeyAgreement.HYBRID)
    drill = Drill(replace(SETTING, params=params), silent)
    drill._kills = {3: ScheduledKill((SETUP, 2), 0.0), 6: ScheduledKill((SETUP, 2), 0.5)}
    drill._report.kills = dict.fromkeys(drill._kills, SETUP)

    report = trio.run(drill.run)

    check(report)
    assert report.killed == 2
    assert [each.contributor_ids for each in report.sums] == [(0, 1, 2, 4, 5, 7)] * len(report.sums)
    assert report.bytes_up["deposit"] > 0
    assert report.as_json()["key_agreement"] == "x25519+ml-kem-768"


@pytest.mark.slow
def test_too_many_kills_abort_sums_and_release_nothing() -> None:
    report = run_drill(replace(SETTING, kill=Fraction(7, 8)), silent)

    check(report)
    assert report.aborted >= 1


def test_a_worker_takes_its_clients_with_it() -> None:
    report = run_drill(replace(SETTING, workers=4), silent)

    check(report)
    assert report.killed == 2
    assert all(each.dropped in (0, 2) for each in report.sums)


@pytest.mark.slow
def test_sums_that_hang_are_counted_and_their_clients_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ends for the clients, although the sum never does."""

    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(NetworkSession, "_ask", hang)
    monkeypatch.setattr(run, "_DEADLINES", replace(run._DEADLINES, mask=0.5))

    report = run_drill(replace(SETTING, clients=4, kill=Fraction(0)), silent)

    assert (report.hung, report.refused, report.orphans) == (2, 0, 0)
    assert report.sums == []
    assert not report.as_promised


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("trust", list(Trust))
def test_thirty_clients(trust: Trust, seed: int) -> None:
    params = SessionParams(trust=trust, corrupt=3, sums=5)
    setting = replace(SETTING, clients=30, kill=Fraction(1, 5), params=params, seed=seed)

    report = run_drill(setting, silent)

    check(report)
    assert report.killed == 6


# --- kills -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_as_many_are_killed_as_was_asked_for(seed: int) -> None:
    setting = replace(SETTING, clients=30, kill=Fraction(1, 5), seed=seed)

    kills = draw_kills(setting, setting.groups())

    assert len(kills) == 6
    assert {kill.point for kill in kills.values()} <= {
        point for part in protocol_points(setting) for point in part
    }


@pytest.mark.parametrize("agreement", KeyAgreement)
def test_only_with_hybrid_keys_does_a_client_die_at_its_deposit(agreement: KeyAgreement) -> None:
    setting = replace(SETTING, params=replace(SETTING.params, key_agreement=agreement))
    in_set_up, *_ = protocol_points(setting)
    assert ((SETUP, 2) in in_set_up) == (agreement is KeyAgreement.HYBRID)


def test_a_crowded_process_is_spared_if_too_many_would_die() -> None:
    groups = [(0, 1, 2), (3,), (4, 5, 6, 7)]

    kills = draw_kills(SETTING, groups)

    assert list(kills) == [3]


def test_kills_differ_by_seed() -> None:
    settings = [replace(SETTING, clients=30, kill=Fraction(1, 2), seed=seed) for seed in (1, 2)]

    assert draw_kills(settings[0], settings[0].groups()) != draw_kills(settings[1], settings[1].groups())


@pytest.mark.parametrize(
    ("point", "sent", "comes"),
    [
        ((1, 2), 49, False),
        ((1, 2), 50, True),
        ((1, 4), 0, True),
        ((0, 4), 100, False),
        ((2, 2), 0, True),
        ((SETUP, 1), 100, False),
    ],
)
def test_a_kill_is_due_at_its_point_or_later(point: tuple[int, int], sent: int, comes: bool) -> None:
    assert ScheduledKill((1, 2), 0.5).is_due(point, sent, 100) is comes


def test_what_others_bring_about_no_client_does_itself() -> None:
    assert not ScheduledKill((1, 2), 0.5, delay=0.1).is_due((1, 4), 100, 100)


def test_messages_have_their_places() -> None:
    assert point_of(m.Advertisement, 3) == (SETUP, 0)
    assert point_of(m.Shares, 3) == (SETUP, 1)
    assert point_of(m.Deposit, 3) == (SETUP, 2)
    assert point_of(m.MaskedInput, 3) == (3, 3)
    assert point_of(m.Confirmation, 3) == (3, 4)
    assert point_of(m.Reveal, 3) == (3, 5)
    assert point_of(m.Leave, 3) is None


def test_a_client_kills_itself_when_its_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    config = DrillWorkerConfig(SETTING, (4, 5), {5: ScheduledKill((SETUP, 1), 0.0)})
    spared, due = (DrillClient(config, member, Identity.generate(), b"") for member in config.members)
    frame = m.Shares(bytes(32), b"x", b"", b"x", b"").encode()

    spared.kill_if_due(frame, 0)
    assert killed == []

    due.kill_if_due(m.Advertisement(bytes(32), b"x").encode(), 50)
    assert killed == []

    due.kill_if_due(frame, 0)
    assert killed == [(os.getpid(), signal.SIGKILL)]


# --- inputs ------------------------------------------------------------------------------------------


def test_everybody_adds_other_numbers_in_every_sum() -> None:
    drawn = {numbers(SETTING, member, k).tobytes() for member in range(8) for k in range(2)}

    assert len(drawn) == 16
    assert np.array_equal(plain_sum(SETTING, [1, 4], 1), numbers(SETTING, 1, 1) + numbers(SETTING, 4, 1))


def test_a_lost_and_a_doubled_client_change_the_fingerprint() -> None:
    right = fingerprint(plain_sum(SETTING, range(8), 0))

    assert fingerprint(plain_sum(SETTING, range(7), 0)) != right
    assert fingerprint(plain_sum(SETTING, [*range(8), 3], 0)) != right


# --- the report --------------------------------------------------------------------------------------

GOOD = SumOutcome(
    sum=0,
    contributors=8,
    dropped=0,
    contributor_ids=tuple(range(8)),
    expected_sha256="a",
    total_sha256="a",
)
ABORTED = SumOutcome(sum=1, contributors=0, dropped=4, aborted=True, survivors=4, threshold=5)


KILLS = {0: SETUP, 1: 0, 2: 1, 3: 1}


def test_a_good_report() -> None:
    report = DrillReport(setting=SETTING, sums=[GOOD, ABORTED], kills=KILLS)

    assert report.as_promised
    assert report.exact
    assert (report.completed, report.aborted, report.missed) == (1, 1, 0)


def test_a_server_that_loses_its_clients_is_no_excuse() -> None:
    """Four of eight left, says the server; but only three were to be killed."""
    report = DrillReport(setting=SETTING, sums=[GOOD, ABORTED], kills={0: SETUP, 1: 0, 2: 1})

    assert not report.as_promised


def test_who_is_missing_and_was_not_to_be_killed_shows() -> None:
    outcome = replace(GOOD, contributors=6, contributor_ids=(0, 1, 2, 3, 4, 5))

    assert DrillReport(setting=SETTING, sums=[outcome], kills={6: 0, 7: SETUP}).as_promised
    assert DrillReport(setting=SETTING, sums=[outcome], kills={6: 0, 7: 1}).missed == 1


def test_a_ring_may_be_cut_by_a_kill() -> None:
    setting = replace(SETTING, params=replace(SETTING.params, trust=Trust.CURIOUS), neighbours=4)
    cut = replace(ABORTED, survivors=7, threshold=None)

    assert DrillReport(setting=setting, sums=[cut], kills={0: 0}).as_promised
    assert not DrillReport(setting=setting, sums=[cut]).as_promised


@pytest.mark.parametrize(
    "report",
    [
        DrillReport(setting=SETTING, sums=[replace(GOOD, total_sha256="b")]),
        DrillReport(setting=SETTING, sums=[replace(ABORTED, survivors=5)], kills={0: 0, 1: 0, 2: 0, 3: 0}),
        DrillReport(setting=SETTING, sums=[replace(ABORTED, threshold=None)], kills={0: 0, 1: 0, 2: 0, 3: 0}),
        DrillReport(setting=SETTING, sums=[GOOD], hung=1),
        DrillReport(setting=SETTING, sums=[GOOD], orphans=1),
        DrillReport(setting=SETTING, sums=[GOOD], released_after_abort=1),
        DrillReport(setting=SETTING, sums=[GOOD], crashed=1),
        DrillReport(setting=SETTING, sums=[GOOD], refused=1),
        DrillReport(setting=SETTING, sums=[GOOD], excluded={3}),
    ],
)
def test_a_bad_report(report: DrillReport) -> None:
    assert not report.as_promised


# --- the command -------------------------------------------------------------------------------------


def test_the_command_prints_what_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "5", "--sums", "1", "--kill", "0", "--dim", "3", "--json"]

    assert main(["drill", *options]) == 0

    report = json.loads(capsys.readouterr().out)
    wanted = {"exact", "aborted", "hung", "orphans", "released_after_abort", "seconds"}
    assert wanted <= set(report)
    assert set(report["sums"][0]) >= {"expected_sha256", "total_sha256", "contributors", "dropped"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--kill", "1.5"], "'1.5' is not at least 0 and below 1"),
        (["--clients", "2"], "from 3 to 1024"),
        (["--neighbours", "4"], "neighbours cannot be chosen under malicious_server"),
        (["--neighbours", "30", "--trust", "curious_server"], "each has from 2 to 29 neighbours"),
        (["--clients", "4", "--corrupt", "0.9"], "a total could show one honest input"),
    ],
)
def test_what_cannot_work_is_refused(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drill", *options]) == 2
    assert why in capsys.readouterr().err


def test_a_setting_is_checked_before_any_process_starts() -> None:
    with pytest.raises(ParameterError, match="one honest input"):
        replace(SETTING, params=SessionParams(trust=Trust.MALICIOUS, corrupt=7, sums=2))

"""Algorithms over clients in actors of Ray: the bits of one process, whoever drops out or is killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.runtime import DropoutSchedule
from sims.runtime.hosted_channel import groups_of
from sims.runtime.ray import RayChannel
from tests.engines.ray_channels import ACTORS, QUIET, RAY, closing_all, kill_actor
from tests.protocols.contract import (
    CASES,
    CLIENTS,
    PLAIN,
    SECURE,
    Case,
    Happened,
    MakeChannel,
    channel_of,
    play,
    rounds_of,
    run_of,
)
from tests.sims.test_processes import Lines

pytestmark = [*QUIET, pytest.mark.usefixtures("ray")]

NAMES = ("fedavg", "rfa", "simplicial-private", "fedgeomed+", "fedbc", "lp-proj-1", "fedalt")
SUITE = tuple(case for case in CASES if case.name in NAMES)
assert len(SUITE) == len(NAMES)
QUICK = {("fedavg", "secure"), ("fedgeomed+", "plain")}
PAIRS = [
    pytest.param(
        case, kind, id=f"{case.name}-{kind}", marks=[] if (case.name, kind) in QUICK else [pytest.mark.slow]
    )
    for case in SUITE
    for kind in RAY
]
IN_ONE_PROCESS = {"plain": PLAIN, "secure": SECURE}
SET_UP = (Stage.ADVERTISE, Stage.SHARE, Stage.DEPOSIT)

each_pair = pytest.mark.parametrize(("case", "kind"), PAIRS)


@pytest.fixture
def make(kind: str) -> Iterator[MakeChannel]:
    with closing_all(RAY[kind]) as made:
        yield made


def both(case: Case, kind: str, make: MakeChannel, trust: Trust = Trust.CURIOUS, **more: Any) -> Happened:
    """What happened on Ray, after the check that the same happened in one process."""
    happened = play(case, make, trust, **more)
    assert happened == play(case, IN_ONE_PROCESS[kind], trust, **more)
    return happened


@each_pair
def test_bits_are_those_of_one_process(case: Case, kind: str, make: MakeChannel) -> None:
    assert both(case, kind, make).failures == [False] * 3


@each_pair
def test_bits_are_those_of_one_process_against_a_malicious_server(
    case: Case, kind: str, make: MakeChannel
) -> None:
    if Trust.MALICIOUS not in case.trusts():
        pytest.skip(f"{case.name} lets a malicious server silence clients")
    assert both(case, kind, make, Trust.MALICIOUS).failures == [False] * 3


@each_pair
def test_somebody_drops_out_at_every_stage(case: Case, kind: str, make: MakeChannel) -> None:
    stages = [stage for stage in Stage if stage not in (Stage.DEPOSIT, Stage.CONFIRM)]

    def dropouts(member: int, stage: Stage, number: int, _sum: int) -> bool:
        return member == number % CLIENTS and number < len(stages) and stage is stages[number]

    happened = both(case, kind, make, rounds=len(stages) + 1, dropouts=dropouts, each_round=True)
    assert not happened.failures[-1]
    if not case.algorithm().needs_all_clients:
        assert not any(happened.failures)


@each_pair
def test_a_late_client_takes_part_from_then_on(case: Case, kind: str, make: MakeChannel) -> None:
    def late(member: int, stage: Stage, number: int, _sum: int) -> bool:
        return member == CLIENTS - 1 and number < 2 and stage is Stage.ADVERTISE

    happened = both(case, kind, make, rounds=4, dropouts=late, each_round=True)
    assert [report[2] for report in happened.reports][2:] == [CLIENTS] * 2


def gone(members: tuple[int, ...]) -> DropoutSchedule:
    """From masking on, these clients are gone for the second round."""
    return lambda member, stage, number, _sum: member in members and number == 1 and stage not in SET_UP


@each_pair
def test_a_killed_actor_is_a_drop_out_of_its_clients_which_come_back(
    case: Case, kind: str, make: MakeChannel
) -> None:
    log = Lines({(1, 0, Stage.MASK): lambda: kill_actor(channel, 1)})
    channel = channel_of(case, make, Trust.CURIOUS, log=log, each_round=True)
    assert isinstance(channel, RayChannel)
    happened = rounds_of(run_of(case, channel), channel, 4)
    members = groups_of(tuple(range(CLIENTS)), ACTORS)[1]
    expected = play(
        case, IN_ONE_PROCESS[kind], Trust.CURIOUS, rounds=4, dropouts=gone(members), each_round=True
    )
    assert [len(pids) for pids in channel.pids] == [1, 2]
    if case.same_bits:
        assert happened == expected
    else:  # A new actor draws other keys, and so other noise.
        assert happened.failures == expected.failures
        assert [report[2] for report in happened.reports] == [report[2] for report in expected.reports]
    assert not happened.failures[-1]

"""Algorithms over clients in worker processes and in actors of Ray: the bits of one process, whoever drops
out, is late, or is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.runtime import DropoutSchedule, Setting
from sims.runtime.hosted_channel import groups_of
from sims.runtime.hosted_clients import ClientFactory
from sims.runtime.processes import ProcessesChannel, processes_sum
from sims.runtime.ray import RayChannel
from tests.engines.ray_channels import ACTORS, QUIET, as_given, kill_host, on_ray
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


def in_processes(
    algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting
) -> ProcessesChannel:
    clients = ClientFactory(as_given, None, learners)
    return processes_sum(algorithm, learners, setting, clients=clients, workers=ACTORS)


@dataclass(frozen=True)
class Host:
    """Where clients are: how a channel to them is made, and the channel in one process that it equals."""

    make: Callable[..., ProcessesChannel | RayChannel]
    in_one_process: MakeChannel


HOSTS: Mapping[str, Host] = {
    "processes": Host(in_processes, SECURE),
    "ray-plain": Host(partial(on_ray, secure=False), PLAIN),
    "ray-secure": Host(partial(on_ray, secure=True), SECURE),
}
NAMES = ("fedavg", "rfa", "simplicial-private", "fedgeomed+", "fedbc", "lp-proj-1", "fedalt")
SUITE = tuple(case for case in CASES if case.name in NAMES)
assert len(SUITE) == len(NAMES)
QUICK = {("fedavg", "ray-secure"), ("fedgeomed+", "ray-plain"), ("fedgeomed+", "processes")}
PAIRS = [
    pytest.param(
        case,
        kind,
        id=f"{case.name}-{kind}",
        marks=[
            *(QUIET if "ray" in kind else ()),
            *(() if (case.name, kind) in QUICK else [pytest.mark.slow]),
        ],
    )
    for case in SUITE
    for kind in HOSTS
]
ORDER = list(Stage)
SET_UP = (Stage.ADVERTISE, Stage.SHARE, Stage.DEPOSIT)

each_pair = pytest.mark.parametrize(("case", "kind"), PAIRS)


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest) -> Iterator[MakeChannel]:
    """Makes channels, which are closed after the test."""
    if "ray" in kind:
        request.getfixturevalue("ray")
    made: list[ProcessesChannel | RayChannel] = []

    def remember(*args: Any, **more: Any) -> ProcessesChannel | RayChannel:
        made.append(HOSTS[kind].make(*args, **more))
        return made[-1]

    yield remember
    for channel in made:
        channel.close()


def both(case: Case, kind: str, make: MakeChannel, trust: Trust = Trust.CURIOUS, **more: Any) -> Happened:
    """What happened, after the check that the same happened in one process."""
    happened = play(case, make, trust, **more)
    check_same(happened, play(case, HOSTS[kind].in_one_process, trust, **more), same_bits=True)
    return happened


def check_same(happened: Happened, expected: Happened, *, same_bits: bool) -> None:
    """Compare two runs: to the last bit, or by which rounds failed and over how many clients they were."""
    if same_bits:
        assert happened == expected
    assert happened.failures == expected.failures
    assert [report[2] for report in happened.reports] == [report[2] for report in expected.reports]


def _skip_unless_allowed(case: Case, trust: Trust) -> None:
    if trust not in case.trusts():
        pytest.skip(f"{case.name} lets a malicious server silence clients")


@each_pair
def test_bits_are_those_of_one_process(case: Case, kind: str, make: MakeChannel) -> None:
    assert both(case, kind, make).failures == [False] * 3


@each_pair
def test_bits_are_those_of_one_process_against_a_malicious_server(
    case: Case, kind: str, make: MakeChannel
) -> None:
    _skip_unless_allowed(case, Trust.MALICIOUS)
    assert both(case, kind, make, Trust.MALICIOUS).failures == [False] * 3


@each_pair
@pytest.mark.parametrize("trust", Trust)
def test_somebody_drops_out_at_every_stage(case: Case, kind: str, make: MakeChannel, trust: Trust) -> None:
    _skip_unless_allowed(case, trust)
    left_out = {Stage.DEPOSIT, *(() if trust is Trust.MALICIOUS else (Stage.CONFIRM,))}
    stages = [stage for stage in Stage if stage not in left_out]

    def dropouts(member: int, stage: Stage, number: int, sum_index: int) -> bool:
        """In round i, client i leaves at the i-th stage of the first sum, for the rest of the round."""
        if member != number or number >= len(stages):
            return False
        return sum_index > 0 or ORDER.index(stage) >= ORDER.index(stages[number])

    more: dict[str, Any] = {"rounds": len(stages) + 1, "dropouts": dropouts, "each_round": True}
    happened = play(case, make, trust, **more)
    expected = play(case, HOSTS[kind].in_one_process, trust, **more)
    # A client whose connection broke is not invited to the next sum, for which noise is then planned anew.
    check_same(happened, expected, same_bits=case.same_bits or kind != "processes")
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
def test_a_killed_process_is_a_drop_out_of_its_clients_which_come_back(
    case: Case, kind: str, make: MakeChannel
) -> None:
    log = Lines({(1, 0, Stage.MASK): lambda: kill_host(channel, 1)})
    channel = channel_of(case, make, Trust.CURIOUS, log=log, each_round=True)
    assert isinstance(channel, ProcessesChannel | RayChannel)
    happened = rounds_of(run_of(case, channel), channel, 4)
    members = groups_of(tuple(range(CLIENTS)), ACTORS)[1]
    expected = play(
        case, HOSTS[kind].in_one_process, Trust.CURIOUS, rounds=4, dropouts=gone(members), each_round=True
    )
    assert [len(pids) for pids in channel.pids] == [1, 2]
    # A new process draws other keys, and so other noise.
    check_same(happened, expected, same_bits=case.same_bits)
    assert not happened.failures[-1]

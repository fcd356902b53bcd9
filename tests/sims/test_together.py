"""Clients that answer together: whom they are told of, and that sums are none the wiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import nn

from fl.crowd import Crowd
from fl.learner_wrapper import WrappedLearners
from fl.stacking_policy import ONE_BY_ONE, TOGETHER
from fl.training_settings import Training
from protocols.algorithm import AnyAlgorithm
from protocols.averaging import Update
from protocols.fedavg import FedAvg
from protocols.learner import Learner, Steering
from protocols.local_only_training import LocalTraining
from protocols.rfa import RFA
from protocols.rounds import RoundInfo
from protocols.run import Run
from protocols.scaffold import Scaffold
from secagg.errors import MalformedMessage, SumFailed, TooFewClients
from secagg.events import Asked, SumAborted
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum
from tests.fl.clients import client

DIM, CLIENTS = 15, 5
Make = Callable[[AnyAlgorithm, Mapping[int, Learner], Setting], SessionChannel]
BOTH = pytest.mark.parametrize("make", [insecure_plain_sum, secure_sum], ids=["plain", "secure"])
TRUSTS = pytest.mark.parametrize("trust", list(Trust))
FEDAVG = FedAvg(dim=DIM, clients=CLIENTS, clip=10.0)
START = np.zeros(DIM)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- a session in one process --------------------------------------------------------------------------


class Watched:
    """A session, and what happens in it in which order."""

    def __init__(self, trust: Trust, **extra: Any) -> None:
        part = Part(name="x", size=1, bits=24, bound=Count(1000))
        table = Table({"first": SumSpec(parts=(part,), times=8)})
        self.log: list[Any] = []
        self.fails = False
        server, machines = local_machines(
            table=table,
            params=SessionParams(trust=trust, corrupt=0, dropout=0.4, sums=8),
            members=range(CLIENTS),
        )
        self.session = LocalSession(server, machines, self._answer, prepare=self._prepare, **extra)

    def _prepare(self, asked: Mapping[int, Asked]) -> None:
        self.log.append({member: (each.kind, each.payload, each.round) for member, each in asked.items()})
        if self.fails:
            raise RuntimeError("cannot work")

    def _answer(self, member: int, _asked: Asked) -> Mapping[str, ArrayLike]:
        self.log.append(member)
        return {"x": [10**member % 1000]}


@TRUSTS
def test_all_are_known_before_the_first_answers(trust: Trust) -> None:
    watched = Watched(trust)
    watched.session.open()
    assert watched.log == [], "in set-up nobody is asked for anything"
    for number, payload in enumerate((b"a", b"b")):
        watched.session.ask("first", payload, round_number=number)
        asked, *answered = watched.log
        assert asked == dict.fromkeys(range(CLIENTS), ("first", payload, number))
        assert answered == list(range(CLIENTS))
        watched.log.clear()


@TRUSTS
def test_who_is_missing_is_not_waited_for(trust: Trust) -> None:
    watched = Watched(trust, absent=lambda member, stage, _sum: member in (1, 3) and stage is Stage.MASK)
    watched.session.open()
    assert watched.session.ask("first").count == 3
    assert list(watched.log[0]) == watched.log[1:] == [0, 2, 4]


def test_when_nobody_is_there_nothing_is_prepared() -> None:
    watched = Watched(Trust.CURIOUS, absent=lambda _member, stage, _sum: stage is Stage.MASK)
    watched.session.open()
    with pytest.raises(TooFewClients):
        watched.session.ask("first")
    assert watched.log == []


@TRUSTS
def test_work_that_fails_gives_up_the_sum_and_no_more(trust: Trust) -> None:
    watched = Watched(trust)
    watched.session.open()
    watched.fails = True
    with pytest.raises(RuntimeError, match="cannot work"):
        watched.session.ask("first", b"a")
    assert isinstance(watched.session.events[-1], SumAborted)
    watched.fails = False
    assert watched.session.ask("first", b"b", round_number=1)["x"].tolist() == [1 + 10 + 100 + 0 + 0]


# --- channels ------------------------------------------------------------------------------------------


def crowd_of(way: str = TOGETHER, **chosen: Any) -> Crowd:
    training = Training(**{"rate": 0.2, "batch": 4} | chosen)
    data = {k: client(8 + k, k) for k in range(CLIENTS)}
    return Crowd(nn.Linear(4, 3), data, training, device="cpu", batching=way)


def channel_of(
    make: Make, learners: Mapping[int, Any], algorithm: AnyAlgorithm = FEDAVG, **chosen: Any
) -> SessionChannel:
    usual: dict[str, Any] = {"insecure_seed": b"together", "dropout": 0.4}
    return make(algorithm, learners, Setting(**usual | chosen))


def rounds_of(channel: SessionChannel, count: int) -> list[Any]:
    """All that can be seen of some rounds, by whoever sees everything."""
    run = Run(channel._algorithm, channel, channel._algorithm.start(START))
    seen = []
    for _ in range(count):
        report = run.round()
        failed = None if report.failure is None else str(report.failure)
        own = [each.personal(run.model).tolist() for each in channel.participants.values()]
        seen.append((report.clients, dict(report.sums), failed, run.model.tolist(), own))
    return seen


def dropouts(member: int, stage: Stage, number: int, _sum: int) -> bool:
    """In the second round one client does not answer, in the third one leaves later, in the fourth four."""
    if number == 3:
        return stage is Stage.MASK and member != 0
    return (number, stage, member) in ((1, Stage.MASK, 2), (2, Stage.REVEAL, 0))


ALGORITHMS: Mapping[str, AnyAlgorithm] = {
    "fedavg": FEDAVG,
    "scaffold": Scaffold(dim=DIM, clients=CLIENTS, clip=10.0, steps=3, rate=0.1),
    "rfa": RFA(dim=DIM, clients=CLIENTS, clip=10.0),
    "local": LocalTraining(dim=DIM, clients=CLIENTS),
}


@TRUSTS
def test_a_crowd_gives_the_same_bits_plain_and_secure(trust: Trust) -> None:
    plain, secure = (
        rounds_of(channel_of(make, crowd_of(), trust=trust, dropouts=dropouts), 5)
        for make in (insecure_plain_sum, secure_sum)
    )
    assert plain == secure
    assert [seen[0] for seen in plain] == [5, 4, 5, 0, 5]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_by_one_a_crowd_is_like_its_members(name: str) -> None:
    """Members without a crowd around them do not know of one another."""
    crowds = crowd_of(ONE_BY_ONE), crowd_of(ONE_BY_ONE)
    found = [
        rounds_of(channel_of(insecure_plain_sum, learners, ALGORITHMS[name], dropouts=dropouts), 5)
        for learners in (crowds[0], dict(crowds[1]))
    ]
    assert found[0] == found[1]
    assert [member.calls for member in crowds[0].values()] == [member.calls for member in crowds[1].values()]


@BOTH
@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_trained_at_once_a_crowd_comes_to_the_same(make: Make, name: str) -> None:
    at_once = rounds_of(channel_of(make, crowd_of(), ALGORITHMS[name], dropouts=dropouts), 3)
    alone = rounds_of(channel_of(make, dict(crowd_of()), ALGORITHMS[name], dropouts=dropouts), 3)
    for one, other in zip(at_once, alone, strict=True):
        assert one[:3] == other[:3]
        np.testing.assert_allclose(one[3], other[3], atol=1e-5)
        np.testing.assert_allclose(one[4], other[4], atol=1e-5)


@BOTH
def test_a_crowd_trains_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, seen = crowd_of(), []
    train = crowd._stack.train

    def spy(tasks: Any) -> Any:
        seen.append(len(tasks))
        return train(tasks)

    monkeypatch.setattr(crowd._stack, "train", spy)
    rounds_of(channel_of(make, crowd, dropouts=dropouts), 2)
    assert seen == [5, 4]
    local = channel_of(make, crowd, ALGORITHMS["local"])
    rounds_of(local, 1)
    assert seen == [5, 4, 5], "what clients do when a round is over as well"


@BOTH
def test_who_is_missing_does_not_train(make: Make) -> None:
    crowd = crowd_of()
    rounds_of(channel_of(make, crowd, dropouts=dropouts), 2)
    assert {k: member.calls for k, member in crowd.items()} == {0: 2, 1: 2, 2: 1, 3: 2, 4: 2}


class Wrapped:
    """A learner around another, with something of its own."""

    def __init__(self, learner: Any, fails: Callable[[], None] | None) -> None:
        self._learner = learner
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def train(self, start: Any, steering: Any = Steering(), **options: Any) -> Any:  # noqa: B008
        trained = self._learner.train(start, steering, **options)
        if self._fails is not None:
            self._fails()
        return trained


def failing(error: Exception, member: int = 2) -> WrappedLearners:
    def fail() -> None:
        raise error

    return WrappedLearners.of(
        crowd_of(ONE_BY_ONE), lambda k, learner: Wrapped(learner, fail if k == member else None)
    )


@BOTH
@TRUSTS
def test_who_refuses_leaves_as_it_would_alone(make: Make, trust: Trust) -> None:
    found = []
    for gathered in (True, False):
        refusing = failing(MalformedMessage("server", "not this one"))
        learners: Mapping[int, Any] = refusing if gathered else dict(refusing)
        found.append(rounds_of(channel_of(make, learners, trust=trust), 2))
    assert found[0] == found[1]
    assert [seen[0] for seen in found[0]] == [4, 4]


@BOTH
def test_who_diverges_declines(make: Make) -> None:
    crowd = crowd_of()
    lost = WrappedLearners.of(
        crowd, lambda k, learner: Wrapped(learner, None) if k != 3 else _Diverging(learner)
    )
    assert [seen[0] for seen in rounds_of(channel_of(make, lost), 2)] == [4, 4]


class _Diverging(Wrapped):
    def __init__(self, learner: Any) -> None:
        super().__init__(learner, None)

    def train(self, start: Any, steering: Any = Steering(), **options: Any) -> Any:  # noqa: B008
        return np.full_like(super().train(start, steering, **options), np.inf)


@BOTH
def test_an_error_in_one_clients_code_is_not_hidden(make: Make) -> None:
    breaks = [True]

    def fail() -> None:
        if breaks:
            raise RuntimeError("disk full")

    learners = WrappedLearners.of(crowd_of(), lambda k, learner: Wrapped(learner, fail if k == 2 else None))
    channel = channel_of(make, learners)
    run = Run(FEDAVG, channel, FEDAVG.start(START))
    with pytest.raises(RuntimeError, match="disk full"):
        run.round()
    breaks.clear()
    assert run.round().clients == CLIENTS, "the next round is whole"


@BOTH
def test_an_error_in_work_of_its_own_is_not_hidden(make: Make) -> None:
    channel = channel_of(make, failing(RuntimeError("disk full")), ALGORITHMS["local"])
    run = Run(channel._algorithm, channel, channel._algorithm.start(START))
    with pytest.raises(RuntimeError, match="disk full"):
        run.round()


@BOTH
def test_who_would_not_answer_does_not_train(make: Make) -> None:
    """Two clients have answered the very same question before, in a smaller cohort."""
    crowd, invited = crowd_of(), [0, 1]
    channel = channel_of(make, crowd, sample_cohort=lambda _number: invited)
    for _ in range(2):
        channel.begin(RoundInfo())
        channel.ask(Update(START))
        invited[:] = range(CLIENTS)
    assert channel.asked[-1].count == 3
    assert [member.calls for member in crowd.values()] == [1] * CLIENTS


@BOTH
def test_when_all_refuse_nobody_trains(make: Make) -> None:
    crowd = crowd_of()
    channel = channel_of(make, crowd)
    channel.begin(RoundInfo())
    channel.ask(Update(START))
    channel.close()
    channel.begin(RoundInfo())  # the server of another session does not know what it has asked
    with pytest.raises(SumFailed):
        channel.ask(Update(START))
    assert [member.calls for member in crowd.values()] == [1] * CLIENTS


@BOTH
def test_an_answer_is_given_once(make: Make) -> None:
    """What was prepared for one sum is not the answer to the next."""
    channel = channel_of(make, crowd_of())
    channel.begin(RoundInfo())
    first = channel.ask(Update(START))
    channel.finish(RoundInfo(1))
    channel.begin(RoundInfo(1))
    second = channel.ask(Update(START))
    assert (first.count, second.count) == (CLIENTS, CLIENTS)
    assert not np.array_equal(first["update"], second["update"]), "batches are drawn anew"

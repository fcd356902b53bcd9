"""A client's runtime: which answer an event is about, and what happens while an answer is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from protocols.learner import uncounted
from protocols.participant import Participant
from protocols.rounds import RoundInfo
from secagg.events import Abandoned, Asked, Confirmed, Joined
from secagg.sum_spec import LInf, Part, SumSpec
from sims.coordination.client_runtime import ClientRuntime, RunOutcome

SPEC = SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(1.0)),))


class Store:
    """A state store in memory."""

    saved: bytes | None = None

    def load(self) -> bytes | None:
        return self.saved

    def save(self, state: bytes) -> None:
        self.saved = state


class CountingLearner:
    calls = 0


class RecordingParticipant:
    """Records its calls. It notices if two threads use it at once."""

    restored: bytes | None = None

    def __init__(self, compute: Callable[[], None] = lambda: None) -> None:
        self.calls: list[str] = []
        self.learner = CountingLearner()
        self.compute = compute
        self._in_use = threading.Lock()

    def _note(self, name: str, during: Callable[[], None] = lambda: None) -> None:
        assert self._in_use.acquire(blocking=False), f"{name} while another thread uses the participant"
        try:
            during()
            self.calls.append(name)
        finally:
            self._in_use.release()

    def answer(self, *_args: Any, **_options: Any) -> Any:
        self._note("answer", self.compute)
        return {"x": [0.0]}

    def confirmed(self) -> None:
        self._note("confirmed")

    def abandoned(self) -> None:
        self._note("abandoned")

    def apply_history(self, _info: RoundInfo) -> None:
        self._note("history")

    def personal(self, model: Any) -> Any:
        return model

    def save(self) -> bytes:
        assert not self._in_use.locked(), "saved while another thread uses the participant"
        return repr(self.calls).encode()

    def restore(self, saved: bytes) -> None:
        self.restored = saved


def runtime_of(participant: RecordingParticipant) -> ClientRuntime:
    return ClientRuntime(cast(Participant, participant), Store())


def asked(index: int) -> Asked:
    return Asked(index, 0, "update", b"", SPEC, 3)


JOINED = Joined(b"session", 3, 2)


def test_a_restarted_client_goes_on_with_the_order_of_its_samples() -> None:
    store, first, again = Store(), RecordingParticipant(), RecordingParticipant()
    runtime = ClientRuntime(cast(Participant, first), store)
    first.learner.calls = 7
    runtime.answer(asked(0))
    ClientRuntime(cast(Participant, again), store)
    assert again.learner.calls == 7
    assert again.restored == b"['answer']"


class OtherCalls:
    """A learner of a user, whose attribute of this name means something else."""

    @property
    def calls(self) -> Any:
        return ["not", "a count"]


class FixedCalls:
    @property
    def calls(self) -> int:
        return 3


@pytest.mark.parametrize("learner", [OtherCalls(), FixedCalls(), object()])
def test_a_learner_that_does_not_count_is_left_alone(learner: Any) -> None:
    store, participant = Store(), RecordingParticipant()
    participant.learner = learner
    ClientRuntime(cast(Participant, participant), store).answer(asked(0))
    ClientRuntime(cast(Participant, participant), store)
    with uncounted(learner):
        pass
    assert participant.restored is not None


def test_a_sum_that_was_over_before_its_answer_leaves_the_last_answer_alone() -> None:
    """A client that charges first does not compute at all if the sum is over."""
    participant = RecordingParticipant()
    runtime = runtime_of(participant)
    runtime.answer(asked(0))
    runtime.on_event(Confirmed(0, 3))
    runtime.too_late(asked(1))
    assert participant.calls == ["answer", "confirmed"]


def test_an_answer_that_was_too_late_is_abandoned() -> None:
    participant = RecordingParticipant()
    runtime, question = runtime_of(participant), asked(0)
    runtime.answer(question)
    runtime.too_late(question)
    assert participant.calls == ["answer", "abandoned"]


@pytest.mark.parametrize("event", [Abandoned(0), Confirmed(0, 3)])
def test_a_sum_of_another_session_is_not_the_one_that_was_answered(event: object) -> None:
    participant = RecordingParticipant()
    runtime = runtime_of(participant)
    runtime.answer(asked(0))
    runtime.on_event(JOINED)
    runtime.on_event(event)
    assert participant.calls == ["answer"]


def test_an_answer_that_failed_is_not_confirmed() -> None:
    """In a sum with noise, zeros were counted in its place."""
    participant = RecordingParticipant()
    runtime = runtime_of(participant)
    runtime.answer(asked(0))

    def fail() -> None:
        raise ZeroDivisionError

    participant.compute = fail
    with pytest.raises(ZeroDivisionError):
        runtime.answer(asked(1))
    runtime.on_event(Confirmed(1, 3))
    assert participant.calls == ["answer"]


def test_events_wait_for_an_answer_that_is_computed_and_their_sender_does_not() -> None:
    computing, go_on = threading.Event(), threading.Event()

    def compute() -> None:
        computing.set()
        go_on.wait()

    participant = RecordingParticipant(compute)
    runtime = runtime_of(participant)
    worker = threading.Thread(target=runtime.answer, args=(asked(0),))
    worker.start()
    computing.wait()
    runtime.on_event(Abandoned(0))
    assert participant.calls == []
    go_on.set()
    worker.join()
    assert participant.calls == ["answer", "abandoned"]


def test_the_end_of_the_run_waits_for_an_answer_that_is_computed() -> None:
    computing, go_on = threading.Event(), threading.Event()

    def compute() -> None:
        computing.set()
        go_on.wait()

    participant = RecordingParticipant(compute)
    runtime = runtime_of(participant)
    outcome = RunOutcome(RoundInfo(1), np.zeros(1))
    workers = [
        threading.Thread(target=runtime.answer, args=(asked(0),)),
        threading.Thread(target=runtime.finish, args=(outcome,)),
    ]
    workers[0].start()
    computing.wait()
    workers[1].start()
    go_on.set()
    for worker in workers:
        worker.join()
    assert participant.calls == ["answer", "history"]


def test_a_personal_model_is_made_with_the_learning_rate_of_the_last_round() -> None:
    """Also by a client that was restarted since, or that was not in the last rounds."""
    rounds: list[int] = []
    participant = RecordingParticipant()
    runtime = ClientRuntime(cast(Participant, participant), begin_round=rounds.append)
    runtime.finish(RunOutcome(RoundInfo(number=7), np.zeros(1)))
    assert rounds == [6]
    assert participant.calls == ["history"]

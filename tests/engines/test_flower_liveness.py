"""How a node of our own becomes online, and stays so, while its SuperLink cannot be reached or refuses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from secagg.net.event_log import EventLog
from secagg.net.settings import Address
from sims.config_problems import ConfigError
from sims.engines.flower import fleet_node
from sims.engines.flower.fleet_api import HEARTBEAT, FleetApi, FleetError, FleetMessage
from sims.engines.flower.fleet_node import FleetNode
from tests.engines.fake_superlink import Answer, FakeSuperLink, Parcel, fake_superlink

T = TypeVar("T")
HERE = Address("127.0.0.1", 9092)
BEAT = HEARTBEAT * fleet_node._EARLY
SOON = 2.0  # seconds: a heartbeat that is as late does not put a node offline
UNREACHABLE, REFUSED = 0, 412  # the status of an error
HANGS: Any = object()  # in place of a result: there is no response


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps does not wait for threads."""

    async def run_sync(call: Callable[..., T], *args: object, **_: object) -> T:
        await trio.lowlevel.checkpoint()
        found = call(*args)
        if found is HANGS:
            await trio.sleep_forever()
        return found

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def link() -> Iterator[FakeSuperLink]:
    with fake_superlink() as opened:
        yield opened


def run_for(seconds: float, api: Any) -> float:
    """Run a node for so long, on a clock that jumps. Return the time at which it ends."""
    node = FleetNode(api, EventLog(lambda *_: None), address=HERE)

    async def main() -> float:
        began = trio.current_time()
        with trio.move_on_after(seconds):
            await node.run()
        return trio.current_time() - began

    return trio.run(main, clock=MockClock(autojump_threshold=0))


# --- activation ---


class ScriptedApi:
    """Stands in for a Fleet API whose activation fails with these statuses, each until a time; then it
    succeeds."""

    def __init__(self, *script: tuple[int, float]) -> None:
        self.script = list(script)
        self.activated: float | None = None
        self.began: float | None = None

    def activate(self) -> int:
        if self.began is None:
            self.began = trio.current_time()
        now = trio.current_time() - self.began
        for status, until in self.script:
            if now < until:
                raise FleetError("it fails", status=status)
        self.activated = now
        return 7

    def heartbeat(self) -> bool:
        return True

    def pull(self) -> FleetMessage | None:
        return None

    def deactivate(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "script",
    [
        [(UNREACHABLE, 300.0), (REFUSED, 320.0)],
        [(REFUSED, 70.0), (UNREACHABLE, 100.0), (REFUSED, 170.0)],
        [(REFUSED, 70.0)],
    ],
    ids=["unreachable before", "unreachable between", "refused"],
)
def test_a_node_that_still_counts_as_online_waits(script: list[tuple[int, float]]) -> None:
    """However long the SuperLink could not be reached before."""
    api = ScriptedApi(*script)
    assert run_for(400.0, api) == pytest.approx(400.0)
    assert api.activated is not None
    assert api.activated >= script[-1][1]


def test_a_node_that_is_refused_for_longer_ends_with_words() -> None:
    api = ScriptedApi((UNREACHABLE, 300.0), (REFUSED, math.inf))
    with pytest.raises(ConfigError, match="register it"):
        run_for(300.0 + 2 * fleet_node._STILL_ONLINE, api)


# --- heartbeats ---


def failed() -> Answer:
    return Answer(status=503)


def not_known() -> Answer:
    return Answer(body=SendNodeHeartbeatResponse(success=False).SerializeToString())


@pytest.mark.parametrize("times", [1, 3])
def test_failed_heartbeats_are_sent_again(link: FakeSuperLink, times: int) -> None:
    """The node need not be activated, which the SuperLink would refuse while it counts as online."""
    link.once["send-node-heartbeat"] = [failed() for _ in range(times)]
    link.parcels = [Parcel.of_letter(b"letter")]
    run_for(BEAT + 2 * SOON, FleetApi(link.address, insecure=True))
    assert link.count("send-node-heartbeat") == times + 1
    assert link.count("activate-node") == 1
    assert link.count("confirm-message-received") == 1


def test_the_first_retry_comes_before_the_node_counts_as_offline(link: FakeSuperLink) -> None:
    link.answers["send-node-heartbeat"] = failed()
    run_for(BEAT + SOON, FleetApi(link.address, insecure=True))
    assert link.count("send-node-heartbeat") >= 2
    run_for(2 * HEARTBEAT, FleetApi(link.address, insecure=True))
    assert link.count("send-node-heartbeat") >= 2 + 3


class SilentApi(ScriptedApi):
    """Does not respond to its first heartbeats."""

    def __init__(self, silent: int) -> None:
        super().__init__()
        self.silent = silent
        self.beats: list[float] = []

    def heartbeat(self) -> bool:
        self.beats.append(trio.current_time())
        return HANGS if len(self.beats) <= self.silent else True


def test_a_heartbeat_without_a_response_is_sent_again() -> None:
    """In time: a node counts as offline after two heartbeats that are missing."""
    api = SilentApi(silent=1)
    run_for(2 * HEARTBEAT, api)
    assert len(api.beats) >= 2
    assert api.beats[1] - api.beats[0] < 2 * HEARTBEAT - BEAT - SOON


def test_a_node_that_is_not_known_is_activated_again(link: FakeSuperLink) -> None:
    link.once["send-node-heartbeat"] = [not_known()]
    run_for(3.5 * BEAT, FleetApi(link.address, insecure=True))
    assert link.count("activate-node") == 2
    assert link.count("send-node-heartbeat") == 3  # it goes on with them


def test_a_node_whose_key_is_refused_sends_no_more_heartbeats(link: FakeSuperLink) -> None:
    link.once["send-node-heartbeat"] = [Answer(status=401)]
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="register it")):
        run_for(2 * BEAT, FleetApi(link.address, insecure=True))

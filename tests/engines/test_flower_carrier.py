"""What a `GridCarrier` does if nodes, or the SuperLink, do not do what they should."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ConfigRecord, RecordDict

from secagg.net.event_log import EventLog, Fact
from secagg.net.tunnel_letters import INSTANCE_BYTES, KEY_BYTES, Letter, Segment
from sims.config_problems import ConfigError
from sims.engines.flower import LETTER, RECORD, grid_carrier
from sims.engines.flower.grid_carrier import GONE, EngineLost, GridCarrier
from sims.engines.flower.server_app import (
    PATIENCE_VARIABLE,
    SCENARIOS_VARIABLE,
    scenario_path,
    superlink_patience,
)
from sims.records.run_directory import FAILED
from sims.records.run_file_names import RUN
from tests.engines.flower_rig import superlink
from tests.engines.flower_site import FlowerSite

SOON = 5.0  # seconds, of which a test needs a fraction
EMPTY = Letter(bytes(INSTANCE_BYTES), 7).encode()
CONTENT = Letter(bytes(INSTANCE_BYTES), 7, (Segment(key=bytes(KEY_BYTES)),)).encode()


class Sent:
    """A message to a node. Flower's own class wants to be in a ServerApp."""

    def __init__(self, content: RecordDict, *, dst_node_id: int, **_more: Any) -> None:
        self.letter = cast(Any, content[RECORD])[LETTER]
        self.node_id = dst_node_id


@pytest.fixture(autouse=True)
def _no_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_carrier, "Message", Sent)
    monkeypatch.setattr(grid_carrier, "_IDLE_LOOKS", 1000)


class Info:
    """What `get_nodes` tells of a node."""

    def __init__(self, node_id: int, name: str) -> None:
        self.node_id, self.name = node_id, name


class Reply:
    """A message that a node has sent, as far as the carrier reads one."""

    def __init__(self, message_id: str, content: Any) -> None:
        self.metadata = cast(Any, type("Metadata", (), {"reply_to_message_id": message_id}))
        self._content = content

    @property
    def content(self) -> RecordDict:
        if isinstance(self._content, Exception):
            raise self._content
        return cast(RecordDict, self._content)

    def has_error(self) -> bool:
        return False


def with_letter(letter: Any) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({LETTER: letter})})


class FakeGrid:
    """A `Grid` whose nodes reply at once with the letter that they got, but for those of `behave`, a function
    for each node id that gets the message id. As Flower does, it gives a reply once, and pulls block."""

    def __init__(self, *nodes: Info) -> None:
        self.nodes = list(nodes)
        self.behave: dict[int, Callable[[str], list[Reply]]] = {}
        self.over = threading.Event()  # ends the calls that block
        self.gone = False  # the SuperLink, and no call returns
        self.pulling: list[int] = []  # the nodes of the pulls that have not returned
        self.pulls = 0
        self._lock = threading.Lock()
        self._letters: dict[str, tuple[int, bytes]] = {}
        self._pushed = 0
        self.before_push: Callable[[], None] = lambda: None

    def get_nodes(self) -> list[Info]:
        self._reach()
        return self.nodes

    def push_messages(self, messages: Iterable[Sent]) -> list[str]:
        self._reach()
        self.before_push()
        ids = []
        for message in messages:
            self._pushed += 1
            ids.append(f"m{self._pushed}")
            self._letters[ids[-1]] = (message.node_id, message.letter)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Reply]:
        self._reach()
        with self._lock:
            self.pulls += 1
            taken = {each: self._letters.pop(each) for each in message_ids if each in self._letters}
            nodes = [node for node, _ in taken.values()]
            self.pulling += nodes
        try:
            return [reply for each, found in taken.items() for reply in self._replies(each, *found)]
        finally:
            with self._lock:
                for node in nodes:
                    self.pulling.remove(node)

    def _replies(self, message_id: str, node: int, letter: bytes) -> list[Reply]:
        if node in self.behave:
            return self.behave[node](message_id)
        return [Reply(message_id, with_letter(letter))]

    def _reach(self) -> None:
        if self.gone:
            self.over.wait()
            raise ConnectionError

    def stall(self, _message_id: str) -> list[Reply]:
        """The objects of a reply are not there, as those of a node that was killed."""
        self.over.wait()
        return []


def members(*numbers: int) -> list[Info]:
    return [Info(100 + each, f"member-{each}") for each in numbers]


class Carried:
    """A carrier over a fake grid, and its log."""

    def __init__(self, *nodes: Info, gone: float = 60.0, apart: bool = True) -> None:
        self.grid = FakeGrid(*nodes)
        self.lines: list[tuple[str, dict[str, Fact]]] = []
        log = EventLog(lambda text, facts: self.lines.append((text, dict(facts))))
        self.carrier = GridCarrier(cast(Any, self.grid), log, poll=0.01, gone=gone)
        self.carrier._apart = apart

    def reasons(self, text: str) -> list[str]:
        return [str(facts["reason"]) for each, facts in self.lines if each == text]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.carrier.run)
                await self.carrier.nodes()
                yield nursery
                nursery.cancel_scope.cancel()
        finally:
            self.grid.over.set()

    async def expect(self, node: str, letter: bytes, reply: bytes | None) -> None:
        with trio.fail_after(SOON):
            assert await self.carrier.exchange(node, letter) == reply


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(SOON):
        while not true():  # noqa: ASYNC110 what happens in threads
            await trio.sleep(0.005)


def run(main: Callable[[], Any]) -> None:
    trio.run(main)


# --- one pull for all nodes, as long as it works ---


def test_one_pull_is_enough_for_nodes_that_reply() -> None:
    async def main() -> None:
        world = Carried(*members(0, 1, 2), apart=False)
        async with world.running() as nursery:
            for _ in range(3):
                for number in range(3):
                    nursery.start_soon(world.expect, f"member-{number}", b"x", b"x")
                await trio.sleep(0.1)
            assert set(world.carrier._replies) <= {grid_carrier._ALL}
        assert not world.carrier._apart

    run(main)


@pytest.mark.parametrize("how", ["stalls", "fails"])
def test_a_reply_that_holds_up_all_does_so_once(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(grid_carrier, "_STALL", 0.2)
    monkeypatch.setattr(grid_carrier, "_FAILED", 0.01)

    def fail(_message_id: str) -> list[Reply]:
        raise ValueError("protobuf")

    async def main() -> None:
        world = Carried(*members(0, 1, 2), apart=False)
        world.grid.behave[102] = world.grid.stall if how == "stalls" else fail
        async with world.running() as nursery:
            await world.expect("member-2", b"x", None)
            nursery.start_soon(world.carrier.exchange, "member-2", b"y")
            for number in range(5):
                await world.expect("member-0", b"%d" % number, b"%d" % number)
                await world.expect("member-1", b"%d" % number, b"%d" % number)
        assert len(world.reasons("letter lost")) >= 1

    run(main)


# --- one node ---


def test_a_node_that_does_not_send_all_of_a_reply_stops_no_other() -> None:
    async def main() -> None:
        world = Carried(*members(0, 1, 2))
        world.grid.behave[102] = world.grid.stall
        async with world.running() as nursery:
            nursery.start_soon(world.carrier.exchange, "member-2", b"x")
            await until(lambda: world.grid.pulling == [102])
            for number in range(5):
                await world.expect("member-0", b"%d" % number, b"%d" % number)
                await world.expect("member-1", b"%d" % number, b"%d" % number)
            assert world.grid.pulling == [102]

    run(main)


@pytest.mark.parametrize("content", [ValueError("no protobuf"), with_letter(7), RecordDict(), 7, None])
def test_a_reply_that_is_none_is_lost_at_once(content: Any) -> None:
    async def main() -> None:
        world = Carried(*members(0, 1))
        world.grid.behave[101] = lambda message_id: [Reply(message_id, content)]
        async with world.running():
            await world.expect("member-1", b"x", None)
            await world.expect("member-0", b"x", b"x")

    run(main)


def test_replies_that_flower_cannot_read_are_lost_at_once_and_stop_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grid_carrier, "_FAILED", 0.01)

    def fail(_message_id: str) -> list[Reply]:
        raise ValueError("protobuf")

    async def main() -> None:
        world = Carried(*members(0, 1))
        world.grid.behave[101] = fail
        async with world.running() as nursery:
            nursery.start_soon(world.expect, "member-1", b"x", None)
            nursery.start_soon(world.expect, "member-1", b"y", None)
            nursery.start_soon(world.expect, "member-0", b"x", b"x")
            await world.expect("member-1", b"z", None)
            await world.expect("member-0", b"z", b"z")
            assert len(world.reasons("letter lost")) == 1  # a node cannot fill the log
            assert "member-1" in world.reasons("letter lost")[0]
            del world.grid.behave[101]
            await world.expect("member-1", b"honest", b"honest")

    run(main)


def test_a_node_that_was_restarted_is_heard_while_an_old_pull_blocks() -> None:
    """It was killed before it had sent all of a reply. The engine notices that it is gone."""

    async def main() -> None:
        world = Carried(*members(0))
        world.grid.behave[100] = world.grid.stall
        async with world.running() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_if, lambda: world.grid.pulling == [100], scope)
                await world.carrier.exchange("member-0", b"x")
            del world.grid.behave[100]
            await world.expect("member-0", b"y", b"y")
            assert world.grid.pulling == [100]

    run(main)


async def _cancel_if(true: Callable[[], bool], scope: trio.CancelScope) -> None:
    await until(true)
    scope.cancel()


def test_few_threads_wait_for_a_node() -> None:
    async def main() -> None:
        world = Carried(*members(0, 1))
        world.grid.behave[100] = world.grid.stall
        async with world.running():
            for _ in range(6):
                with trio.move_on_after(0.1):
                    await world.carrier.exchange("member-0", b"x")
            assert world.grid.pulling == [100] * 2
            await world.expect("member-1", b"x", b"x")

    run(main)


async def looks(world: Carried, seconds: float) -> float:
    """Return how many times in a second the carrier looks for replies."""
    before = world.grid.pulls
    await trio.sleep(seconds)
    return (world.grid.pulls - before) / seconds


def test_many_nodes_are_not_looked_at_more_often_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """And less often while letters have no content, as those that wait for a node to say something."""
    monkeypatch.setattr(grid_carrier, "_AWAKE", 0.5)
    monkeypatch.setattr(grid_carrier, "_IDLE_LOOKS", 10)

    async def main() -> None:
        world = Carried(*members(*range(40)))
        world.grid.behave = {each.node_id: lambda _: [] for each in world.grid.nodes}
        async with world.running() as nursery:
            for info in world.grid.nodes:
                nursery.start_soon(world.carrier.exchange, info.name, EMPTY)
            await until(lambda: world.grid._pushed == 40)
            idle = await looks(world, 1)
            nursery.start_soon(world.carrier.exchange, "member-0", CONTENT)
            await trio.sleep(0.1)
            busy = await looks(world, 0.5)
            assert idle < 20
            assert idle < busy < 100

    run(main)


# --- letters that are given up ---


def test_a_letter_that_is_given_up_is_not_kept() -> None:
    """Before it is pushed, while it is pushed, and afterwards."""

    async def main() -> None:
        world = Carried(*members(0))
        entered, go_on = threading.Event(), threading.Event()
        world.grid.behave[100] = lambda _: []

        def before_push() -> None:
            entered.set()
            go_on.wait()

        world.grid.before_push = before_push
        async with world.running() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_if, entered.is_set, scope)
                await world.carrier.exchange("member-0", b"while")
            with trio.move_on_after(0.01):
                await world.carrier.exchange("member-0", b"before")
            assert not world.carrier._replies
            go_on.set()
            with trio.move_on_after(0.1):
                await world.carrier.exchange("member-0", b"after")
            assert world.grid._pushed == 2
            await until(lambda: not any(each.is_pulling for each in world.carrier._replies.values()))
            pulls = world.grid.pulls
            await trio.sleep(0.1)
            assert world.grid.pulls == pulls

    run(main)


def test_letters_are_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_carrier, "_PATIENCE", 0.1)

    async def main() -> None:
        world = Carried(*members(0))
        world.grid.behave[100] = lambda _: []
        async with world.running():
            await world.expect("member-0", b"x", None)

    run(main)


# --- the SuperLink ---


def test_a_superlink_that_is_gone_is_given_up() -> None:
    """Flower's calls do not return. The threads that make them are left to themselves."""
    world = Carried(*members(0), gone=0.3)

    async def main() -> None:
        async with world.running():
            await world.expect("member-0", b"x", b"x")
            world.grid.gone = True
            await world.carrier.exchange("member-0", b"y")

    before = time.monotonic()
    with pytest.raises(BaseExceptionGroup) as caught:
        run(main)
    assert caught.group_contains(EngineLost, match=r"could not be reached for 0\.3 s")
    assert time.monotonic() - before < SOON
    assert world.reasons("unreachable")


def test_a_superlink_that_only_has_nothing_to_say_is_not_given_up() -> None:
    async def main() -> None:
        world = Carried(*members(0), gone=0.1)
        world.grid.behave[100] = world.grid.stall
        async with world.running() as nursery:
            nursery.start_soon(world.carrier.exchange, "member-0", b"x")
            await until(lambda: world.grid.pulling == [100])
            await trio.sleep(0.5)

    run(main)


# --- two nodes of a client ---


@pytest.mark.parametrize(("one", "other"), [("member-4", "member-4"), ("a-4", "b-04")])
def test_of_two_nodes_of_a_client_that_in_use_stays(one: str, other: str) -> None:
    async def main() -> None:
        world = Carried(Info(1, one), Info(7, "member-5"))
        assert set(await world.carrier.nodes()) == {one, "member-5"}
        for nodes in ([Info(2, other), Info(1, one)], [Info(1, one), Info(2, other)]):
            world.grid.nodes = nodes
            assert set(await world.carrier.nodes()) == {one}
            assert world.carrier._ids == {one: 1}
        (caution,) = world.reasons("caution")
        assert f"{one} (1)" in caution
        assert f"{other} (2)" in caution
        world.grid.nodes = [Info(2, other)]
        assert set(await world.carrier.nodes()) == {other}
        assert world.carrier._ids == {other: 2}

    run(main)


def test_cautions_are_bounded() -> None:
    """A SuperLink cannot fill the log with names."""

    async def main() -> None:
        world = Carried(*(Info(each, f"stranger {each}\n") for each in range(1000)))
        assert not await world.carrier.nodes()
        assert len(world.reasons("caution")) < 300
        assert not any("\n" in each for each in world.reasons("caution"))

    run(main)


# --- the ServerApp ---


def test_a_scenario_in_the_directory_of_the_operator(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.toml").touch()
    (tmp_path / "outside.toml").touch()
    fixed = {SCENARIOS_VARIABLE: str(tmp_path / "there")}
    assert scenario_path("train", fixed) == tmp_path / "there" / "train.toml"
    outside = str(tmp_path / "outside")
    for named in (
        outside,
        f"{outside}.toml",
        "../outside",
        "train.toml",
        "other",
        "",
        ".",
        "train\n",
        None,
        7,
    ):
        with pytest.raises(ConfigError, match=r"^scenario: "):
            scenario_path(named, fixed)
    with pytest.raises(ConfigError, match="absolute"):
        scenario_path("train", {SCENARIOS_VARIABLE: "there"})


def test_a_scenario_anywhere(tmp_path: Path) -> None:
    assert scenario_path(str(tmp_path / "train.toml"), {}) == tmp_path / "train.toml"
    for named in ("train.toml", "", None, 7, b"/train.toml"):
        with pytest.raises(ConfigError, match="absolute path"):
            scenario_path(named, {})


def test_how_long_a_superlink_may_be_gone() -> None:
    assert superlink_patience({}) == GONE
    assert superlink_patience({PATIENCE_VARIABLE: "7.5"}) == 7.5
    for wrong in ("", "long", "0", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match=PATIENCE_VARIABLE):
            superlink_patience({PATIENCE_VARIABLE: wrong})


@pytest.mark.slow
def test_a_server_app_ends_after_its_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run directory is free then, so that the run can go on."""
    monkeypatch.setenv(PATIENCE_VARIABLE, "5")
    with superlink(tmp_path) as link:
        site = FlowerSite(link, clients=3, rounds=400)
        site.register()
        for member in site.clients:
            site.start_node(member)
        site.submit()
        site.wait_for(0, "counted")
        assert len(link.server_apps) == 1
        link.started[0].kill()
        end = time.monotonic() + 5 + 30
        while link.server_apps:
            assert time.monotonic() < end, site.log[-5:]
            time.sleep(0.2)
        facts = json.loads((site / "run" / RUN).read_text())
        assert facts["status"] == FAILED
        assert "the SuperLink could not be reached for 5 s" in facts["why"]

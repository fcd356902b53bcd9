"""Carries letters through a Flower `Grid`, the public API of a ServerApp.

`Grid.pull_messages` takes replies from the SuperLink, and then waits in the calling thread until all of their
parts are there, which their nodes may never send. One pull for all nodes is the cheapest. As soon as it once
takes long or fails, each node has a pull of its own from then on. A node that sends only a part of a reply,
or something that Flower cannot read, then keeps up nothing but its own letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from random import uniform
from typing import Any, Final, TypeVar

import trio
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from secagg.errors import SecaggError
from secagg.net.event_log import EventLog, printable
from secagg.net.tunnel import member_of_node
from secagg.net.tunnel_letters import INSTANCE_BYTES, Letter
from sims.engines.flower import LETTER, MESSAGE_TYPE, RECORD

GONE: Final = 120.0  # seconds without an answer after which the SuperLink is given up
_POLL: Final = 0.1  # seconds between two looks for replies of a node
# Looks in a second, at most, at all nodes together. Each costs the SuperLink some milliseconds.
_LOOKS: Final = 50
_IDLE_LOOKS: Final = 10
_AWAKE: Final = 10.0  # seconds since the last letter with content after which the nodes are idle
_EMPTY: Final = len(Letter(bytes(INSTANCE_BYTES)).encode())  # bytes of a letter without content
_STALL: Final = 10.0  # seconds that a pull for all nodes may take
_ALL: Final = -1  # in place of a node's id: all nodes
_PATIENCE: Final = 300.0  # seconds after which a letter without a reply is lost
_FAILED: Final = 2.0  # seconds to wait after a call that has failed
_SILENT: Final = 10.0  # seconds without an answer of the SuperLink after which the log says so
_WATCH: Final = 0.5  # seconds between two looks at whether it answers
# A pull that waits for parts of a reply goes on when nothing needs it any more; the SuperLink ends it after
# three minutes. The node's next letters are pulled meanwhile, because the node may have been restarted.
_PULLS: Final = 2
_MOST_CAUTIONS: Final = 256
_MOST_SHOWN: Final = 100  # characters of a name

T = TypeVar("T")


class EngineLost(SecaggError):
    """The engine that carries the connections is gone."""


@dataclass(eq=False)
class _Carried:
    """A letter on its way, and its reply."""

    node_id: int
    letter: bytes = field(repr=False)
    message_id: str = ""
    pull: int = _ALL  # the id of the node whose pull looks for the reply
    reply: bytes | None = field(default=None, repr=False)
    done: trio.Event = field(default_factory=trio.Event)
    given_up: bool = False  # no reply is needed any more

    def finish(self, reply: bytes | None) -> None:
        self.reply = reply
        self.done.set()


@dataclass
class _Replies:
    """The letters whose replies one pull looks for, by message id, and this pull."""

    sent: dict[str, _Carried] = field(default_factory=dict)
    is_pulling: bool = False  # whether a task looks for them
    pulled: frozenset[str] = frozenset()  # what its present pull looks for
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # of the pull
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_PULLS))

    @property
    def is_over(self) -> bool:
        return not self.is_pulling and not self.threads.borrowed_tokens

    def take(self, message_id: str, reply: bytes | None) -> None:
        """Take the reply to a letter; None if it is lost."""
        if (carried := self.sent.pop(message_id, None)) is not None:
            carried.finish(reply)

    def forget(self, message_id: str) -> None:
        """Expect no reply to a letter. A pull that looks for nothing else is left to itself."""
        self.sent.pop(message_id, None)
        if self.pulled.isdisjoint(self.sent):
            self.scope.cancel()


class GridCarrier:
    """Carries letters to the nodes of a `Grid`. Implements `Carrier`.

    Flower's own `send_and_receive` looks for replies every three seconds; this looks ten times a second, or
    less often if there are many nodes or only empty letters. All letters that wait are pushed in one call. A
    node is called by its registered name, or by its id if it has none; a node whose name stands for no client
    is left alone, and so is a second node of the same client. The SuperLink is given up after `gone` seconds
    without an answer.
    """

    def __init__(self, grid: Grid, log: EventLog, *, poll: float = _POLL, gone: float = GONE) -> None:
        self._grid = grid
        self._log = log
        self._poll = poll
        self._gone = gone
        self._ids: dict[str, int] = {}
        self._cautions: set[str] = set()
        self._waiting: list[_Carried] = []
        self._apart = False  # whether each node has a pull of its own
        self._replies: dict[int, _Replies] = {}  # by node id, or `_ALL`
        self._unreadable: set[int] = set()  # ids of nodes of which the log has told that
        self._wake = trio.Event()
        self._awake_until = -math.inf
        self._stirred = trio.Event()  # a letter with content was sent, or has come
        self._asked: float | None = None  # when the SuperLink was called that has not answered since

    # --- nodes ---

    async def nodes(self) -> Collection[str]:
        try:
            self._ids = self._chosen(await self._call(lambda: list(self._grid.get_nodes())))
        except Exception as error:
            self._report(error)
        return self._ids.keys()

    def _chosen(self, found: Iterable[Any]) -> dict[str, int]:
        """Return the ids of the nodes to use, by name. Of two nodes of one client, that in use stays."""
        in_use = set(self._ids.items())
        ids: dict[str, int] = {}
        names: dict[int, str] = {}  # of clients
        for info in sorted(found, key=lambda each: (each.name, each.node_id) not in in_use):
            if not info.name:
                ids[str(info.node_id)] = info.node_id
            elif (member := member_of_node(info.name)) is None:
                self._caution(
                    f"the node {_shown(info.name)} is left alone: a name ends with the id of a client, as "
                    "member-4"
                )
            elif member in names:
                used = names[member]
                self._caution(
                    f"the nodes {_shown(used)} ({ids[used]}) and {_shown(info.name)} ({info.node_id}) both "
                    f"stand for client {member}; the second is left alone: unregister one of them"
                )
            else:
                ids[info.name], names[member] = info.node_id, info.name
        return ids

    def _caution(self, reason: str) -> None:
        if reason not in self._cautions and len(self._cautions) < _MOST_CAUTIONS:
            self._cautions.add(reason)
            self._log.write("caution", reason=reason)

    # --- letters ---

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        if node not in self._ids:
            await trio.lowlevel.checkpoint()
            return None
        carried = _Carried(self._ids[node], letter)
        self._waiting.append(carried)
        self._wake.set()
        self._stir(letter)
        try:
            with trio.move_on_after(_PATIENCE):
                await carried.done.wait()
        finally:
            self._give_up(carried)
        return carried.reply

    def _give_up(self, carried: _Carried) -> None:
        carried.given_up = True
        if (replies := self._replies.get(carried.pull)) is not None:
            replies.forget(carried.message_id)

    async def run(self) -> None:
        """Push and pull messages. Raise `EngineLost` if the SuperLink does not answer for long: the run is as
        it was when it is started again."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._push_all, nursery)
            await self._wait_until_gone()
            nursery.cancel_scope.cancel()
        raise EngineLost(f"the SuperLink could not be reached for {self._gone:g} s")

    async def _push_all(self, nursery: trio.Nursery) -> None:
        while True:
            for carried in await self._push_waiting():
                self._expect(carried, nursery)
            await self._wake.wait()
            self._wake = trio.Event()

    async def _push_waiting(self) -> list[_Carried]:
        """Push the letters that wait, and return those to which a reply can come. The others are lost."""
        batch, self._waiting = [each for each in self._waiting if not each.given_up], []
        if not batch:
            return []
        pushed: list[str | None] = []
        try:
            pushed = await self._call(lambda: self._push(batch))
        except Exception as error:
            self._report(error)
        for carried, message_id in zip_longest(batch, pushed[: len(batch)]):
            carried.message_id = message_id or ""
            if not message_id:
                carried.finish(None)
        if not pushed:
            await trio.sleep(_FAILED)
        return [each for each in batch if each.message_id and not each.given_up]

    def _push(self, batch: list[_Carried]) -> list[str | None]:
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord({LETTER: each.letter})}),
                dst_node_id=each.node_id,
                message_type=MESSAGE_TYPE,
                ttl=_PATIENCE,
            )
            for each in batch
        ]
        return list(self._grid.push_messages(messages))

    # --- replies ---

    def _expect(self, carried: _Carried, nursery: trio.Nursery) -> None:
        self._replies = {node_id: each for node_id, each in self._replies.items() if not each.is_over}
        carried.pull = carried.node_id if self._apart else _ALL
        replies = self._replies.setdefault(carried.pull, _Replies())
        replies.sent[carried.message_id] = carried
        if not replies.is_pulling:
            replies.is_pulling = True
            nursery.start_soon(self._pull_from, carried.pull, replies)

    async def _pull_from(self, node_id: int, replies: _Replies) -> None:
        """Look for the replies of a node as long as some are expected."""
        while replies.sent:
            await self._pause()
            if replies.sent and not await self._pull(node_id, replies):
                await trio.sleep(_FAILED)
        replies.is_pulling = False

    def _stir(self, letter: bytes | None) -> None:
        if letter is not None and len(letter) > _EMPTY:
            self._awake_until = trio.current_time() + _AWAKE
            self._stirred.set()
            self._stirred = trio.Event()

    async def _pause(self) -> None:
        """Wait until a node is looked at again."""
        if trio.current_time() > self._awake_until:
            with trio.move_on_after(self._interval(_IDLE_LOOKS)) as idle:
                await self._stirred.wait()
            if idle.cancelled_caught:
                return
        await trio.sleep(self._interval(_LOOKS))

    def _interval(self, looks: int) -> float:
        # Random, so that not all nodes are looked at at once.
        return max(self._poll, len(self._replies) / looks) * uniform(0.5, 1.5)

    async def _pull(self, node_id: int, replies: _Replies) -> bool:
        """Take the replies of a node, or of all, that have come. Return False if Flower fails to read them,
        or if those of all take long. Then they are lost, because the SuperLink gives a reply only once."""
        wanted = replies.pulled = frozenset(replies.sent)
        limit = _STALL if node_id == _ALL else math.inf
        found: list[Message] = []
        with trio.CancelScope(deadline=trio.current_time() + limit) as replies.scope:
            try:
                found = await trio.to_thread.run_sync(
                    lambda: list(self._grid.pull_messages(sorted(wanted))),
                    abandon_on_cancel=True,
                    limiter=replies.threads,
                )
            except Exception as error:
                self._lose(node_id, replies, wanted, type(error).__name__)
                return False
            self._asked = None
        if replies.scope.cancelled_caught and trio.current_time() >= replies.scope.deadline:
            self._lose(node_id, replies, wanted, "it takes long")
            return False
        for message in found:
            letter = _letter_of(message)
            self._stir(letter)
            replies.take(message.metadata.reply_to_message_id, letter)
        replies.pulled = frozenset()
        return True

    def _lose(self, node_id: int, replies: _Replies, wanted: Iterable[str], why: str) -> None:
        self._tell_unreadable(node_id, why)
        self._apart = True
        for message_id in list(replies.sent) if node_id == _ALL else wanted:
            replies.take(message_id, None)

    def _tell_unreadable(self, node_id: int, why: str) -> None:
        if node_id in self._unreadable or len(self._unreadable) == _MOST_CAUTIONS:
            return
        self._unreadable.add(node_id)
        if node_id == _ALL:
            reason = f"Flower fails to get a reply ({why}): from now on, the replies of each node apart"
        else:
            name = next((name for name, each in self._ids.items() if each == node_id), str(node_id))
            reason = f"Flower fails to get a reply of the node {_shown(name)} ({why})"
        self._log.write("letter lost", reason=reason)

    # --- the SuperLink ---

    async def _call(self, function: Callable[[], T]) -> T:
        """Return the answer of the SuperLink to a call that waits for nothing else. Flower tries again for
        ever if the SuperLink cannot be reached: if this is cancelled, the thread is left to itself."""
        if self._asked is None:
            self._asked = trio.current_time()
        answer = await trio.to_thread.run_sync(function, abandon_on_cancel=True)
        self._asked = None
        return answer

    async def _wait_until_gone(self) -> None:
        told = False
        while (silent := self._silent) < self._gone:
            if silent >= _SILENT and not told:
                self._log.write("unreachable", reason=f"the SuperLink (no answer for {silent:.0f} s)")
            told = silent >= _SILENT
            await trio.sleep(min(_WATCH, self._gone - silent))
        self._log.write("unreachable", reason=f"the SuperLink (no answer for {silent:.0f} s): given up")

    @property
    def _silent(self) -> float:
        """For how many seconds the SuperLink has not answered."""
        return 0.0 if self._asked is None else trio.current_time() - self._asked

    def _report(self, error: Exception) -> None:
        # Its text may quote addresses and headers, so that only its kind is told.
        self._log.write("unreachable", reason=f"the SuperLink ({type(error).__name__})")


def _letter_of(message: Message) -> bytes | None:
    """Return the letter in a reply; None if it has none, or is none."""
    try:
        record: Any = None if message.has_error() else dict(message.content).get(RECORD)
        letter = record.get(LETTER) if isinstance(record, ConfigRecord) else None
    except Exception:  # what a node sends decides what Flower raises
        return None
    return letter if isinstance(letter, bytes) else None


def _shown(name: str) -> str:
    return printable(name[:_MOST_SHOWN].encode("utf-8", "replace"))

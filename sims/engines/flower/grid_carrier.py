"""Carries letters through a Flower `Grid`, the public API of a ServerApp."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from secagg.errors import SecaggError
from secagg.net.event_log import EventLog
from secagg.net.tunnel import member_of_node
from sims.engines.flower import LETTER, MESSAGE_TYPE, RECORD

_POLL: Final = 0.1  # seconds between two looks for replies
_PATIENCE: Final = 300.0  # seconds after which a letter without a reply is lost
_FAILED: Final = 2.0  # seconds to wait after the SuperLink could not be reached
_GONE: Final = 120.0  # seconds after which it is given up


class EngineLost(SecaggError):
    """The engine that carries the connections is gone."""


@dataclass
class _Carried:
    """A letter on its way, and its reply."""

    node_id: int
    letter: bytes = field(repr=False)
    message_id: str = ""
    reply: bytes | None = field(default=None, repr=False)
    done: trio.Event = field(default_factory=trio.Event)


class GridCarrier:
    """Carries letters to the nodes of a `Grid`. Implements `Carrier`.

    Flower's own `send_and_receive` looks for replies every three seconds; this looks ten times a second. All
    letters that wait are pushed in one call. A node is called by its registered name, or by its id if it has
    none; a node whose name stands for no client is left alone.
    """

    def __init__(self, grid: Grid, log: EventLog, *, poll: float = _POLL) -> None:
        self._grid = grid
        self._log = log
        self._poll = poll
        self._ids: dict[str, int] = {}
        self._left_alone: set[str] = set()
        self._waiting: list[_Carried] = []
        self._sent: dict[str, _Carried] = {}  # by message id
        self._wake = trio.Event()

    async def nodes(self) -> Collection[str]:
        try:
            found = await trio.to_thread.run_sync(lambda: list(self._grid.get_nodes()))
        except Exception as error:
            self._report(error)
            return self._ids.keys()
        self._ids = {}
        for info in found:
            if not info.name:
                self._ids[str(info.node_id)] = info.node_id
            elif member_of_node(info.name) is not None:
                self._ids[info.name] = info.node_id
            elif info.name not in self._left_alone:
                self._left_alone.add(info.name)
                reason = (
                    f"the node {info.name} is left alone: a name ends with the id of a client, as member-4"
                )
                self._log.write("caution", reason=reason)
        return self._ids.keys()

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        if node not in self._ids:
            await trio.lowlevel.checkpoint()
            return None
        carried = _Carried(self._ids[node], letter)
        self._waiting.append(carried)
        self._wake.set()
        try:
            with trio.move_on_after(_PATIENCE):
                await carried.done.wait()
        finally:
            self._sent.pop(carried.message_id, None)
        return carried.reply

    async def run(self) -> None:
        """Push and pull messages. Raise `EngineLost` if the SuperLink cannot be reached for long: the
        run is as it was when it is started again."""
        reached = trio.current_time()
        while True:
            try:
                await self._push_waiting()
                for message in await trio.to_thread.run_sync(self._pull):
                    self._take(message)
                reached = trio.current_time()
            except Exception as error:
                self._report(error)
                if trio.current_time() > reached + _GONE:
                    raise EngineLost(f"the SuperLink could not be reached for {_GONE:g} s") from None
                await trio.sleep(_FAILED)
            self._wake = trio.Event()
            with trio.move_on_after(self._poll):
                if not self._waiting:
                    await self._wake.wait()

    def _report(self, error: Exception) -> None:
        # Its text may quote addresses and headers, so that only its kind is told.
        self._log.write("unreachable", reason=f"the SuperLink ({type(error).__name__})")

    async def _push_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        if batch:
            try:
                await trio.to_thread.run_sync(self._push, batch)
            finally:
                sent = set(map(id, self._sent.values()))
                for each in batch:
                    if id(each) not in sent:  # it is lost
                        each.done.set()

    def _push(self, batch: list[_Carried]) -> None:
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord({LETTER: each.letter})}),
                dst_node_id=each.node_id,
                message_type=MESSAGE_TYPE,
                ttl=_PATIENCE,
            )
            for each in batch
        ]
        pushed = list(self._grid.push_messages(messages))
        for carried, message_id in zip(batch, pushed, strict=False):
            if message_id:
                carried.message_id = message_id
                self._sent[message_id] = carried

    def _pull(self) -> list[Message]:
        return list(self._grid.pull_messages(list(self._sent))) if self._sent else []

    def _take(self, message: Message) -> None:
        carried = self._sent.pop(message.metadata.reply_to_message_id, None)
        if carried is not None:
            carried.reply = None if message.has_error() else _letter_of(message)
            carried.done.set()


def _letter_of(message: Message) -> bytes | None:
    """Return the letter in a reply; None if it has none."""
    record: Any = dict(message.content).get(RECORD)
    letter = record.get(LETTER) if isinstance(record, ConfigRecord) else None
    return letter if isinstance(letter, bytes) else None

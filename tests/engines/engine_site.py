"""A deployment that trains through an engine in this process: clients may come late, or be killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from secagg.events import Asked
from secagg.local_session import Stage
from secagg.net.event_log import EventLog
from secagg.net.events import ClientLeft, NetworkEvent, SessionBegun, StageClosed
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.join import JoinRunner
from sims.deploy.training_server import load_deployment, open_server_run
from tests.engines.fake_engine import FakeEngine, FakeNode
from tests.secagg.net.rig import Diary
from tests.sims.training_site import TrainingSite

PATIENCE = """
[deploy.patience]
silence = 4.0
grace = 0.5
farewell = 0.5
"""
CLIENT_PATIENCE = """
[patience]
silence = 4.0
farewell = 0.5
"""
LAST = 10.0  # seconds after the end of the server in which a client ends, unless it was refused


@dataclass(frozen=True)
class Kill:
    """Kill client `member` when `event` has been written to its log `times` times."""

    member: int
    event: str
    times: int = 1


@dataclass(frozen=True)
class StageKill:
    """Kill client `member` when the server has opened `stage` for the `times`-th time. It does not answer in
    this stage."""

    member: int
    stage: Stage
    times: int


class _RawLog(EventLog):
    """A log that also hands on the events themselves."""

    def __init__(self, diary: Diary, on_event: Callable[[NetworkEvent], None]) -> None:
        super().__init__(diary)
        self._on_event = on_event

    def __call__(self, event: NetworkEvent) -> None:
        super().__call__(event)
        self._on_event(event)


@dataclass
class _Client:
    diary: Diary = field(default_factory=Diary)
    starts: int = 0


class EngineSite(TrainingSite):
    """A training site whose connections a `FakeEngine` carries."""

    def __init__(self, directory: Path, *, min_cohort: int | None = None, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.node_names = {member: f"member-{member}" for member in self.clients}
        self.engine = FakeEngine(set(self.node_names.values()))
        self.running = {member: _Client() for member in self.clients}
        self.kill: Kill | StageKill | None = None
        self.events: list[NetworkEvent] = []  # of the server
        self._end_killed: Callable[[], None] | None = None  # kills the client of a `StageKill`
        self._opened = 0  # how often its stage was opened
        self.late: dict[int, str] = {}  # clients that come when the server's log has this event
        text = (self / "train.toml").read_text().replace('listen = "127.0.0.1:0"', 'listen = "engine"')
        if min_cohort is not None:
            text = text.replace(f"min_cohort = {len(self.clients)}", f"min_cohort = {min_cohort}")
        self.write("train.toml", text.replace("linger = 20.0", "linger = 2.0") + PATIENCE)
        for member in self.clients:
            self.write(f"join-{member}.toml", (self / f"join-{member}.toml").read_text() + CLIENT_PATIENCE)

    def be_patient(self) -> None:
        """Let no connection count as lost because this machine is busy."""
        self.change("train.toml", "silence = 4.0\ngrace = 0.5", "silence = 30.0\ngrace = 10.0")
        for member in self.clients:
            self.change(f"join-{member}.toml", "silence = 4.0", "silence = 30.0")

    def train(self, until: Callable[[Diary], bool] | None = None) -> Diary:
        assert until is None
        log = Diary()
        trio.run(self._serve, log)
        return log

    async def _serve(self, log: Diary) -> None:
        deployment = load_deployment(self / "train.toml")
        opened = open_server_run(*deployment, _RawLog(log, self._note_of_server), carrier=self.engine)
        with opened as server, trio.fail_after(280):
            async with trio.open_nursery() as nursery:
                for member in self.clients:
                    nursery.start_soon(self._run_client, member, log)
                await server.run()
                nursery.cancel_scope.deadline = trio.current_time() + LAST

    async def _run_client(self, member: int, log: Diary) -> None:
        """Run a client to its end, and start it again if it was killed."""
        if member in self.late:
            await _has(log, self.late[member], 1)
        if self.kill is not None and self.kill.member == member:
            await self._run_until_killed(member, self.kill)
        await self._run_once(member, self.engine.node(self.node_names[member]))

    async def _run_until_killed(self, member: int, kill: Kill | StageKill) -> None:
        node = self.engine.node(self.node_names[member])
        async with trio.open_nursery() as nursery:
            if isinstance(kill, Kill):
                nursery.start_soon(self._kill, kill, node, nursery.cancel_scope)
            else:
                self._end_killed = partial(_end, node, nursery.cancel_scope)
            await self._run_once(member, node)

    def _note_of_server(self, event: NetworkEvent) -> None:
        self.events.append(event)
        self._kill_at_stage(event)

    def _note_of_client(self, member: int, event: NetworkEvent) -> None:
        if self.kill is not None and self.kill.member == member:
            self._kill_at_stage(event)

    def _kill_at_stage(self, event: NetworkEvent) -> None:
        """Kill the client of a `StageKill` at once, in the midst of an event of the server or of its own."""
        if not isinstance(self.kill, StageKill) or not self._opens(self.kill.stage, event):
            return
        self._opened += 1
        if self._opened == self.kill.times:
            assert self._end_killed is not None
            self._end_killed()

    def _opens(self, stage: Stage, event: NetworkEvent) -> bool:
        """Whether a stage begins with an event."""
        if stage is Stage.ADVERTISE:
            return isinstance(event, SessionBegun)
        if stage is Stage.MASK:
            return isinstance(event, Asked)
        signed = self.settings["trust"] == "malicious_server"
        before = {
            Stage.SHARE: Stage.ADVERTISE,
            Stage.CONFIRM: Stage.MASK,
            Stage.REVEAL: Stage.CONFIRM if signed else Stage.MASK,
        }
        return isinstance(event, StageClosed) and event.stage is before[stage]

    def stages_of_drop_outs(self, member: int) -> list[Stage]:
        """Return the stages in which a client left a session."""
        found, left = list[Stage](), False
        for event in self.events:
            left = left or (isinstance(event, ClientLeft) and event.member == member)
            if left and isinstance(event, StageClosed):
                found.append(event.stage)
                left = False
        return found

    async def _kill(self, kill: Kill, node: FakeNode, scope: trio.CancelScope) -> None:
        await _has(self.running[kill.member].diary, kill.event, kill.times)
        _end(node, scope)

    async def _run_once(self, member: int, node: FakeNode) -> None:
        client = self.running[member]
        client.starts += 1
        plan = load_client_setup(self / f"join-{member}.toml", through_engine=True)
        with plan.open_ledger() as ledger:
            try:
                log = _RawLog(client.diary, partial(self._note_of_client, member))
                await JoinRunner(plan, ledger, log, sessions=0, engine=node).run()
            except ConfigError as error:
                client.diary("ended", {"reason": str(error)})


def _end(node: FakeNode, scope: trio.CancelScope) -> None:
    node.kill()
    scope.cancel()


async def _has(log: Diary, event: str, times: int) -> None:
    while len(log.facts(event)) < times:  # noqa: ASYNC110
        await trio.sleep(0.005)

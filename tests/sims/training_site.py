"""A deployment that trains, for tests: its files, and a server with its clients in one event loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import trio

from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.finished_run import FinishedRun
from sims.deploy.join import JoinRunner
from sims.deploy.training_server import load_deployment, open_server_run
from sims.scenario.loading_and_variants import load
from sims.simulation.progress import no_progress
from sims.simulation.simulate import Simulation
from tests.secagg.net.rig import Diary
from tests.sims.deploy_site import Site

SCENARIO = """
seed = 3
rounds = {rounds}
{more}

[data]
kind = "digits"

[partition]
kind = "iid"
clients = {clients}

[model]
kind = "softmax"

[training]
rate = 0.1
epochs = 1
batch = 16

[algorithm]
{algorithm}

[channel]
kind = "secure"
trust = "{trust}"
corrupt = 1
dropout = 0.2

[deploy]
listen = "127.0.0.1:{port}"
key = "server.key"
certificate = "server.pem"
authority = "authority.pem"
registry = "registry.secagg"
run = "run"
min_cohort = {clients}
linger = 20.0
rest = 0.01
metrics = {{ listen = "{metrics}" }}
"""

JOIN = """
[client]
member = {member}
server = "127.0.0.1:{port}"
key = "client-{member}.key"
certificate = "client-{member}.pem"
server_certificate = "server.pem"
authority = "authority.pem"
registry = "registry.secagg"
scenario = "train.toml"
ledger = "client-{member}.ledger"

[policy]
trust = "{trust}"
corrupt = 1
min_cohort = 3
max_cohort = {clients}
min_contributors = 3
max_sums = 64
unnoised_sums = {unnoised}

[input]
share = {member}
state = "state-{member}"
model = "final-{member}.npz"
personal = "personal-{member}.npz"
"""


class TrainingSite(Site):
    """An authority, a server and clients 0 to `clients` - 1, which train the same scenario."""

    scenario_text = SCENARIO
    join_text = JOIN

    def __init__(
        self,
        directory: Path,
        *,
        clients: int = 4,
        algorithm: str = 'name = "fedavg"\nclip = 5.0',
        trust: str = "curious_server",
        rounds: int = 3,
        more: str = "",
        port: int = 0,
        unnoised: int = 10_000,
        metrics: str = "off",
    ) -> None:
        super().__init__(directory, tuple(range(clients)))
        self.settings: dict[str, Any] = {
            "clients": clients, "algorithm": algorithm, "trust": trust, "rounds": rounds, "more": more,
            "unnoised": unnoised, "metrics": metrics,
        }  # fmt: skip
        self.scenarios: dict[int, str] = {}  # of clients that have another one
        self.write_all(port)

    def write_all(self, port: int) -> None:
        self.write("train.toml", self.scenario_text.format(port=port, **self.settings))
        for member in self.clients:
            text = self.join_text.format(port=port or 1, member=member, **self.settings)
            scenario = self.scenarios.get(member, "train.toml")
            self.write(f"join-{member}.toml", text.replace("train.toml", scenario))

    def allow_few_sums(self) -> None:
        """Let all clients refuse sessions with as many sums as the server's have."""
        few = (self / "train.toml").read_text().replace("corrupt = 1", "corrupt = 1\nsums = 2")
        self.write("few.toml", few)
        self.scenarios = dict.fromkeys(self.clients, "few.toml")
        self.join_text = self.join_text.replace("max_sums = 64", "max_sums = 2")

    # --- in one event loop ---

    def train(self, until: Callable[[Diary], bool] | None = None) -> Diary:
        """Train to the end, or until `until` holds of the server's log. Return that log."""
        log = Diary()
        self.write_all(0)
        self.diaries = {member: Diary() for member in self.clients}
        trio.run(self._train, log, until)
        return log

    def hand_out(self) -> None:
        """Serve a run that is finished."""
        self.write_all(0)
        self.diaries = {member: Diary() for member in self.clients}
        trio.run(self._hand_out, Diary())

    async def _hand_out(self, log: Diary) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._join_all, log)
            await FinishedRun(*load_deployment(self / "train.toml"), EventLog(log)).run()

    async def _train(self, log: Diary, until: Callable[[Diary], bool] | None) -> None:
        deployment = load_deployment(self / "train.toml")
        with open_server_run(*deployment, EventLog(log)) as server, trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._join_all, log)
                if until is not None:
                    nursery.start_soon(_cancel_when, nursery.cancel_scope, until, log)
                await server.run()

    async def _join_all(self, log: Diary) -> None:
        await log.has("started")
        port = str(log.facts("started")[0]["address"]).rpartition(":")[2]
        async with trio.open_nursery() as nursery:
            for member, diary in self.diaries.items():
                self.change(f"join-{member}.toml", 'server = "127.0.0.1:1"', f'server = "127.0.0.1:{port}"')
                nursery.start_soon(self._join, member, diary)

    async def _join(self, member: int, diary: Diary) -> None:
        plan = load_client_setup(self / f"join-{member}.toml")
        with plan.open_ledger() as ledger:
            try:
                await JoinRunner(plan, ledger, EventLog(diary), sessions=0).run()
            except ConfigError as error:
                diary("ended", {"reason": str(error)})

    # --- results ---

    def model(self, name: str = "run/model.npz") -> Any:
        with np.load(self / name) as archive:
            return archive["model"]

    def simulated(self) -> Simulation:
        """The same scenario with invented clients, after its last round."""
        settings = load(self / "train.toml").variants[0].settings
        simulation = Simulation(settings, Path(), None, no_progress)
        simulation.run(lambda _round: None, lambda: False)
        return simulation

    def check_models(self) -> None:
        """Check that all models, also those of each client alone, are those of the simulation."""
        simulation = self.simulated()
        assert np.abs(self.model() - simulation.setup.run.model).max() < 1e-4
        for member, participant in simulation.setup.watched.items():
            assert np.array_equal(self.model(f"final-{member}.npz"), self.model())
            own = participant.personal(simulation.setup.run.model)
            assert np.abs(self.model(f"personal-{member}.npz") - own).max() < 1e-4


async def _cancel_when(scope: trio.CancelScope, until: Callable[[Diary], bool], log: Diary) -> None:
    while not until(log):  # noqa: ASYNC110
        await trio.sleep(0.01)
    scope.cancel()

"""A training run whose server and clients are killed again and again: it ends as if nothing had happened."""

from __future__ import annotations

import copy
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import vector_to_parameters

from protocols.participant import Participant
from protocols.serialisation import Vector
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from sims.audit.audit_run import audit_run
from sims.coordination.client_runtime import ClientRuntime
from sims.deploy.client_state_file import StateFile
from sims.deploy.run_terms import run_terms
from sims.records import RunDirectory
from sims.records.run_directory import FINISHED
from tests.sims.supervisor import SERVER, Supervisor, client_name, draw_kills
from tests.sims.training_site import SCENARIO, TrainingSite

MALICIOUS = "malicious_server"
ALGORITHM = 'name = "fedgeomed+"\nsigma = 0.1'
CLIENTS = 8
ROUNDS = 12
KILLS = 30
KILLS_OF_SERVER = 10
MARGIN = 0.02  # of accuracy, between a run with kills and one without


class KilledSite(TrainingSite):
    """Eight clients. A round begins with all of them, so that none is over while a killed one starts again,
    however slow that is; those that are killed in its midst drop out of it. Local training takes a while."""

    scenario_text = (
        SCENARIO.replace("epochs = 1", "epochs = 40").replace("linger = 20.0", "linger = 120.0")
        + "\n[deploy.deadlines]\njoin = 10.0\nshare = 10.0\nmask = 60.0\nconfirm = 10.0\nreveal = 10.0\n"
        + "\n[deploy.patience]\ngrace = 2.0\n"
    )

    def __init__(self, directory: Path, trust: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        directory.mkdir()
        super().__init__(
            directory, clients=CLIENTS, algorithm=ALGORITHM, trust=trust, rounds=ROUNDS, port=port
        )
        self.terms = run_terms(self / "train.toml", directory)

    def memory(self, member: int) -> Vector | None:
        """The personal model in the state file of a client; None if it has none yet."""
        store = StateFile(self / f"state-{member}", member, self.terms.digest)
        if store.load() is None:
            return None
        trust, learner = self.terms.settings.channel.trust, object()
        client = Participant(self.terms.algorithm, learner, trust=trust, member=member)  # type: ignore[arg-type]
        ClientRuntime(client, store)
        model: Vector | None = client.memory.model
        return model

    def accuracy(self) -> float:
        """Of the final common model, on the test samples of all clients."""
        return self._accuracy(self.model(), *self.clients)

    def personal_accuracy(self) -> float:
        """Of the final personal models, each on its client's own test samples: their mean."""
        found = [self._accuracy(self.model(f"personal-{each}.npz"), each) for each in self.clients]
        return float(np.mean(found))

    def _accuracy(self, model: Vector, *members: int) -> float:
        assert self.terms.federation is not None
        tests = [self.terms.federation.clients[member].test for member in members]
        inputs = torch.from_numpy(np.concatenate([each.x for each in tests])).float()
        targets = np.concatenate([each.y for each in tests])
        module = copy.deepcopy(self.terms.module).eval()
        vector_to_parameters(torch.from_numpy(np.asarray(model)).float(), module.parameters())
        return float((module(inputs).argmax(1).numpy() == targets).mean())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], KilledSite]:
    """A run without kills, of the given trust level."""

    @cache
    def run(trust: str) -> KilledSite:
        site = KilledSite(tmp_path_factory.mktemp("undisturbed") / trust, trust)
        site.train()
        return site

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trust", "seed"), [("curious_server", 1), ("curious_server", 2), (MALICIOUS, 3), (MALICIOUS, 4)]
)
def test_a_run_with_thirty_kills_ends_as_one_without(
    tmp_path: Path, trust: str, seed: int, undisturbed: Callable[[str], KilledSite]
) -> None:
    calm = undisturbed(trust)
    site = KilledSite(tmp_path / "killed", trust)
    supervisor, memories = Supervisor(site), Memories(site)
    kills = draw_kills(seed, site.clients, kills=KILLS, of_server=KILLS_OF_SERVER, rounds=ROUNDS - 3)
    supervisor.run(kills, memories.look)

    assert len(supervisor.stages) == KILLS, supervisor.stages
    check_processes(supervisor)
    check_server(site)
    for member in site.clients:
        check_client(site, member)
    memories.check()
    assert site.accuracy() == pytest.approx(calm.accuracy(), abs=MARGIN)
    assert site.personal_accuracy() == pytest.approx(calm.personal_accuracy(), abs=MARGIN)


class Memories:
    """The personal models that killed clients leave in their state files."""

    def __init__(self, site: KilledSite) -> None:
        self._site = site
        self._left: dict[int, list[Vector | None]] = defaultdict(list)

    def look(self, victim: str) -> None:
        if victim != SERVER:
            member = int(victim.removeprefix("client-"))
            self._left[member].append(self._site.memory(member))

    def check(self) -> None:
        """A personal model is never lost, not even for a while, and is in the end the one that is written."""
        for member in self._site.clients:
            left = [*self._left[member], self._site.memory(member)]
            has = [each is not None for each in left]
            assert has == sorted(has), f"client {member} has begun again"
            personal = self._site.model(f"personal-{member}.npz")
            assert left[-1] is not None
            assert np.array_equal(personal, left[-1])
            assert not np.array_equal(personal, self._site.model())


def check_processes(supervisor: Supervisor) -> None:
    """Each stage was hit, and no process has ended but by a kill and at the end of the run."""
    killed = supervisor.killed()
    assert killed[SERVER] == KILLS_OF_SERVER
    assert sum(killed.values()) == KILLS
    for name, process in supervisor.processes.items():
        assert process.exits == [-9] * killed[name] + [0]
        assert process.stderr() == ""
    stages = {stage for victim, stage in supervisor.stages if victim == SERVER}
    assert len(stages) > 3, supervisor.stages
    stages = {stage for victim, stage in supervisor.stages if victim != SERVER}
    assert len(stages) > 4, supervisor.stages


def check_server(site: KilledSite) -> None:
    """No round is asked in two sessions, and no sum of a round is released more often than it may be."""
    assert RunDirectory(site / "run").status == FINISHED
    assert audit_run(site / "run").integrity.problems == ()
    with ServerLedger.open(site / "run/ledger"):
        pass
    table = site.terms.algorithm.table
    assert table is not None
    rows = [row.body for row in read_ledger(site / "run/ledger").rows]
    asked = {(row["session"], row["sum index"]): row for row in rows if row["entry"] == "asked"}
    sessions = defaultdict(set)
    for row in asked.values():
        sessions[row["round"]].add(row["session"])
    assert all(len(each) == 1 for each in sessions.values())
    order = [row["round"] for row in rows if row["entry"] == "asked"]
    assert order == sorted(order)
    released = [(row["session"], row["sum index"]) for row in rows if row["entry"] == "released"]
    assert len(set(released)) == len(released)
    often = Counter((asked[each]["round"], asked[each]["kind"]) for each in released)
    assert all(times <= table[kind].times for (_, kind), times in often.items())


def check_client(site: KilledSite, member: int) -> None:
    """The client has answered no question twice, and the sums of a round in one session only."""
    name, table = client_name(member), site.terms.algorithm.table
    assert table is not None
    with ClientLedger.open(
        site / f"{name}.ledger", member=member, identity=site.identities[name].public
    ) as ledger:
        assert ledger.spend.unnoised > 0
    answers: list[Mapping[str, Any]] = [
        row.body for row in read_ledger(site / f"{name}.ledger").rows if row.body["entry"] == "answer"
    ]
    assert len({each["content"] for each in answers}) == len(answers)
    often = Counter((each["round"], each["sum"]["kind"]) for each in answers)
    assert all(times <= table[kind].times for (_, kind), times in often.items())
    sessions = defaultdict(set)
    for each in answers:
        sessions[each["round"]].add(each["sum"]["session"])
    assert all(len(each) == 1 for each in sessions.values())
    assert np.array_equal(site.model(f"final-{member}.npz"), site.model())

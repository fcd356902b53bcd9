"""Training with clients that compare the clients of successive sums: they are asked by batches."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import trio

from secagg.ledger import read_ledger
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from tests.secagg.net.rig import Diary
from tests.sims.training_site import JOIN, SCENARIO, TrainingSite

APART, CLIENTS = 3, 8
MALICIOUS = "malicious_server"


class Batches(TrainingSite):
    """A run whose clients go and come back after certain rounds."""

    scenario_text = (
        SCENARIO.replace("dropout = 0.2", f"dropout = 0.2\nmin_difference = {APART}").replace(
            "min_cohort = {clients}", "min_cohort = 4"
        )
        + "\n[deploy.patience]\ngrace = 0.5\n"
    )
    join_text = JOIN.replace("min_contributors = 3", f"min_contributors = 3\nmin_difference = {APART}")
    # After so many rounds (at least): who goes, and who comes back.
    moves: tuple[tuple[int, set[int], set[int]], ...] = (
        (1, {7}, set()),
        (3, {6}, set()),
        (5, set(), {7}),
        (6, set(), {6}),
    )

    async def _join_all(self, log: Diary) -> None:
        await log.has("started")
        port = str(log.facts("started")[0]["address"]).rpartition(":")[2]
        async with trio.open_nursery() as nursery:
            here: dict[int, tuple[trio.CancelScope, trio.Event]] = {}
            for member in self.clients:
                self.change(f"join-{member}.toml", 'server = "127.0.0.1:1"', f'server = "127.0.0.1:{port}"')
                here[member] = (trio.CancelScope(), trio.Event())
                nursery.start_soon(self._come, member, *here[member])
            for rounds, going, coming in self.moves:
                await self._after(log, rounds)
                for member in going:
                    here[member][0].cancel()
                    await here[member][1].wait()
                for member in coming:
                    here[member] = (trio.CancelScope(), trio.Event())
                    nursery.start_soon(self._come, member, *here[member])

    async def _after(self, log: Diary, rounds: int) -> None:
        while len(log.facts("round")) < rounds:  # noqa: ASYNC110
            await trio.sleep(0.01)

    async def _come(self, member: int, scope: trio.CancelScope, gone: trio.Event) -> None:
        try:
            with scope:
                await self._join(member, self.diaries[member])
        finally:
            gone.set()


def confirmed_sets(path: Path) -> set[frozenset[int]]:
    """The sets that a server's ledger has for clients that compare them."""
    rows = [row.body for row in read_ledger(path).rows if row.body["entry"] == "survivors"]
    return {frozenset(body["members"]) for body in rows if body["rule"] == "kind"}


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["curious_server", pytest.param(MALICIOUS, marks=pytest.mark.slow)])
def test_clients_that_come_and_go_are_asked_by_batches(tmp_path: Path, trust: str) -> None:
    site = Batches(tmp_path, clients=CLIENTS, rounds=9, trust=trust)
    log = site.train()
    assert not [each for diary in site.diaries.values() for each in diary.facts("refused")]
    rounds = log.facts("round")
    assert len(rounds) == 9
    assert sum(bool(each["clients"]) for each in rounds) >= 5
    sets = confirmed_sets(site / "run/ledger")
    assert len(sets) > 1
    assert all(len(one ^ other) >= APART for one, other in combinations(sets, 2))
    assert {6, 7} <= max(sets, key=len)


def test_a_client_that_compares_more_than_the_server_is_told(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    site.change("join-0.toml", "min_contributors = 3", "min_contributors = 3\nmin_difference = 2")
    with pytest.raises(ConfigError) as caught:
        load_client_setup(site / "join-0.toml")
    assert "policy.min_difference" in str(caught.value)

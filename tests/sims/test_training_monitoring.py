"""What a training server shows its operator over HTTP: its figures, and whether it can do its work."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from secagg.identity_registry import Registry
from secagg.ledger import read_ledger
from secagg.local_session import Stage
from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.deploy import monitoring
from sims.deploy.training_server import load_deployment, open_server_run
from tests.secagg.net.rig import Diary
from tests.sims.small_disk import SmallDisk, small_disk
from tests.sims.test_deploy_metrics import Figures, get, parsed
from tests.sims.test_training_hosts import PRIVATE
from tests.sims.training_site import SCENARIO, TrainingSite

Watch = Callable[["Watched", Diary], Awaitable[None]]
GOOD = (200, {"status": "good"})


class Watched(TrainingSite):
    """A deployment that trains until somebody who watches it has seen enough."""

    scenario_text = SCENARIO.replace('run = "run"', 'run = "disk/run"')
    absent: tuple[int, ...] = ()  # clients that are not there at first

    def __init__(self, directory: Path, **settings: Any) -> None:
        (directory / "disk").mkdir(exist_ok=True)
        super().__init__(directory, rounds=500, metrics="127.0.0.1:0", **settings)
        self.arrived = trio.Event()

    def watched(self, watch: Watch) -> Diary:
        log = Diary()
        self.write_all(0)
        self.diaries = {member: Diary() for member in self.clients}
        trio.run(self._watched, log, watch)
        return log

    async def _watched(self, log: Diary, watch: Watch) -> None:
        with (
            open_server_run(*load_deployment(self / "train.toml"), EventLog(log)) as server,
            trio.fail_after(300),
        ):
            self.server = server
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._join_all, log)
                nursery.start_soon(server.run)
                await log.has("started")
                self.address = str(log.facts("started")[0]["metrics"])
                await watch(self, log)
                nursery.cancel_scope.cancel()

    async def _join(self, member: int, diary: Diary) -> None:
        if member in self.absent:
            await self.arrived.wait()
        await super()._join(member, diary)

    async def get(self, path: str) -> tuple[int, str]:
        return await trio.to_thread.run_sync(get, self.address, path)

    async def health(self) -> tuple[int, Any]:
        status, body = await self.get("/health")
        return status, json.loads(body)

    async def turns(self, status: int) -> list[str]:
        """Wait until the health is this; the subjects that are bad."""
        while (found := await self.health())[0] != status:  # noqa: ASYNC110
            await trio.sleep(0.2)
        return [each["about"] for each in found[1].get("reasons", [])]

    async def figures(self) -> Figures:
        return parsed((await self.get("/metrics"))[1])


async def rounds(log: Diary, count: int) -> None:
    while len(log.facts("round")) < count:  # noqa: ASYNC110
        await trio.sleep(0.02)


def test_a_training_run_is_counted(tmp_path: Path) -> None:
    seen: list[Figures] = []

    async def watch(site: Watched, log: Diary) -> None:
        assert await site.health() == GOOD
        await rounds(log, 2)
        seen.append(await site.figures())

    site = Watched(tmp_path, algorithm=PRIVATE, unnoised=0)
    log = site.watched(watch)
    (found,) = seen
    rows = [row.body for row in read_ledger(site / "disk/run/ledger").rows]
    released = [body for body in rows if body["entry"] == "released"]
    assert 2 <= found["sums_released_total", ""] <= len(released)
    assert found["rounds", ""] == 500
    assert 2 <= found["rounds_done", ""] <= len(log.facts("round"))
    assert found["rounds_failed", ""] == 0
    assert found["clients_connected", ""] == 4
    assert 0 < found["rho_spent", ""] <= released[-1]["charge so far"] / 2**40
    assert found["unnoised_sums", ""] == 0
    for stage in (Stage.MASK, Stage.REVEAL):
        assert found["stage_duration_seconds_count", stage.value] >= 2
        assert found["received_bytes_total", stage.value] > 0
        assert found["sent_bytes_total", stage.value] > 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


def test_a_full_disk_is_bad_until_there_is_room_and_costs_no_round(tmp_path: Path, disk: SmallDisk) -> None:
    """While it is full, nothing is asked; then training begins."""

    async def watch(site: Watched, log: Diary) -> None:
        assert await site.health() == GOOD
        disk.fill()
        assert await site.turns(503) == ["ledger", "run"]
        site.arrived.set()
        while not [each for each in log.facts("waiting") if "reason" in each]:  # noqa: ASYNC110
            await trio.sleep(0.02)
        assert not [row for row in read_ledger(disk.path / "run/ledger").rows if row.body["entry"] == "asked"]
        disk.free()
        assert await site.turns(200) == []
        await rounds(log, 1)

    site = Watched(tmp_path)
    site.absent = (3,)
    log = site.watched(watch)
    assert log.facts("round")[0]["clients"] == 4
    assert [each["about"] for each in log.facts("unhealthy")] == ["ledger", "run"]
    assert [each["about"] for each in log.facts("healthy")] == ["ledger", "run"]


def test_an_expired_registry_is_bad_until_there_is_a_new_one(tmp_path: Path) -> None:
    async def watch(site: Watched, _log: Diary) -> None:
        assert await site.health() == GOOD
        current = site.server._credentials.registry
        for registry, status in (
            (Registry(2, current.members, 1000), 503),
            (Registry(3, current.members), 200),
        ):
            live = site.server._credentials
            live.current = replace(live.current, registry=registry)
            bad = await site.turns(status)
            assert bad == (["registry"] if status == 503 else [])
            assert (await site.figures())["registry_version", ""] == registry.version

    site = Watched(tmp_path)
    site.absent = (3,)
    site.watched(watch)


def test_rounds_that_nobody_can_be_asked_for_are_counted_by_reason(tmp_path: Path) -> None:
    async def watch(site: Watched, _log: Diary) -> None:
        found: Figures = {}
        while ("sums_refused_total", "TooFewClients") not in found:
            found = await site.figures()
            await trio.sleep(0.05)
        assert found["rounds_done", ""] == 0

    site = Watched(tmp_path)
    site.allow_few_sums()  # so that clients refuse the invitation
    site.watched(watch)


# --- settings ---


def test_an_address_in_use_is_a_mistake_only_if_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_site: Watched, _log: Diary) -> None:
        pass

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site = Watched(tmp_path)
        site.settings["metrics"] = f"127.0.0.1:{port}"
        with pytest.raises(BaseExceptionGroup) as caught:
            site.watched(nothing)
        assert caught.group_contains(ConfigError, match=r"deploy: metrics\.listen", depth=1)
        monkeypatch.setattr("sims.deploy.config.MetricsSection.is_explicit", False)
        log = site.watched(nothing)
    assert log.facts("started")[0]["metrics"] == "off"
    assert any("metrics and health are not served" in str(each) for each in log.reasons("caution"))


def test_a_chosen_address_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Watched(tmp_path)
    monkeypatch.setattr(monitoring, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"deploy\.metrics\.listen"):
        load_deployment(site / "train.toml")

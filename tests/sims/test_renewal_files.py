"""What server and client do with files that change while they run: what is taken up, refused and stored."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from secagg import events
from secagg.differencing_rules import SetLog
from secagg.errors import FalseCount, TooFewClients
from secagg.hand_over import HandOver
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import read_ledger
from secagg.ledger.file_lock import lock_file
from secagg.net.certificates import certificate_key
from secagg.net.event_log import EventLog
from secagg.net.events import KeyListing, RegistryAdopted, ServerCertificateAdopted
from secagg.net.identity_and_registry_files import read_certificate, read_key, write_hand_overs
from secagg.net.notices import Topic
from sims.audit.audit_run import audit_run
from sims.cli import main
from sims.coordination.sum_settings import SumSettings
from sims.coordination.transport import SessionPlan
from sims.deploy import renewal
from sims.deploy.client_setup import load_client_setup
from sims.deploy.connected_clients import ConnectedClients
from sims.deploy.renewal import ClientFiles, wait_for_registry
from sims.deploy.server_setup import load_server_setup
from sims.deploy.training_server import load_deployment
from tests.secagg.net.rig import Diary
from tests.sims.deploy_site import Site
from tests.sims.training_site import TrainingSite

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_INTERVAL", 0.02)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


class Spy:
    """In place of a server or a client: what it was told, by method."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def post(self, notice: Any) -> None:
        self.calls.append(("post", notice.topic))

    def renew(self, *, members: Any, context: Any, notices: Any) -> None:
        self.calls.append(("renew", [notice.topic for notice in notices]))

    async def offer_registry(self, data: bytes) -> None:
        self.calls.append(("registry", data))

    async def offer_key(self, identity: Identity, certificate: bytes) -> None:
        self.calls.append(("key", identity.public))

    def pin_server(self, certificate: bytes) -> None:
        self.calls.append(("pin", certificate))

    def of(self, name: str) -> list[Any]:
        return [what for method, what in self.calls if method == name]


Follow = Callable[[], Awaitable[None]]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


def followed(follow: Follow, steps: Callable[[], Awaitable[None]]) -> None:
    """Take `steps` while files are followed."""

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await steps()
            nursery.cancel_scope.cancel()

    trio.run(play)


def refused_times(log: Diary, number: int) -> bool:
    return len(log.facts("renewal refused")) == number


# --- a server -----------------------------------------------------------------------------------------


def test_only_a_newer_registry_of_the_authority_is_taken_up(site: Site) -> None:
    site.enrol(version=5)
    own, spy, log = load_server_setup(site / "serve.toml").credentials, Spy(), Diary()
    spoils: list[Callable[[], object]] = [
        lambda: site.enrol(version=4),
        lambda: site.enrol({1: "client-1", 2: "client-2"}, version=5),
        lambda: site.enrol(version=6, authority="client-1"),
        lambda: site.write("registry.secagg", b"garbage"),
        lambda: site.write("registry.pem", b""),
        lambda: (site / "registry.secagg").unlink(),
    ]

    async def steps() -> None:
        for number, spoil in enumerate(spoils, start=1):
            spoil()
            await until(partial(refused_times, log, number))
            assert own.registry.version == 5
        site.enrol({1: "client-1", 2: "client-2"}, version=6)
        await until(lambda: own.registry.version == 6)
        own.watch.nudge()  # nothing has changed
        await trio.sleep(0.1)

    followed(lambda: own.follow(spy, EventLog(log)), steps)  # type: ignore[arg-type]
    assert spy.of("post") == [Topic.REGISTRY]
    assert spy.of("renew") == [[Topic.REGISTRY]]
    assert sorted(own.clients) == [1, 2]
    assert [line["registry"] for line in log.facts("renewed")] == [6]


def test_a_server_key_is_taken_up_with_a_hand_over_and_its_ledger_follows(site: Site) -> None:
    plan = load_server_setup(site / "serve.toml")
    own, spy, log, old = plan.credentials, Spy(), Diary(), plan.credentials.identity
    with plan.open_ledger() as ledger:
        handed_over: list[bytes] = []

        def follow_key(new: Any) -> None:
            ledger.offer(new.hand_overs)
            ledger.check_owner(new.identity.public)
            handed_over.append(new.identity.public)

        own.on_new_key = follow_key

        async def steps() -> None:
            site.replace_identity("server")
            await until(lambda: log.facts("renewal refused"))
            assert own.identity.public == old.public
            assert not handed_over
            write_hand_overs(site / "server.handover", [HandOver.sign("server", old, _key(site))])
            await until(lambda: spy.of("renew"))

        followed(lambda: own.follow(spy, EventLog(log)), steps)  # type: ignore[arg-type]
    assert own.identity.public == _key(site) == handed_over[0]
    assert read_ledger(site / "server.ledger").owner.identity == _key(site)
    load_server_setup(site / "serve.toml")


def _key(site: Site) -> bytes:
    return read_key(site / "server.key").public


@pytest.mark.parametrize("options", [["--server"], ["--same-key", "--days", "20"]])
def test_clients_are_told_of_a_renewed_certificate(site: Site, options: list[str]) -> None:
    own, spy, log = load_server_setup(site / "serve.toml").credentials, Spy(), Diary()

    async def steps() -> None:
        assert main(["keygen", "--renew", "server", "--directory", str(site.directory), *options]) == 0
        await until(lambda: spy.of("renew"))

    followed(lambda: own.follow(spy, EventLog(log)), steps)  # type: ignore[arg-type]
    assert spy.of("renew")[-1] == [Topic.REGISTRY, Topic.SERVER_CERTIFICATE]
    assert log.facts("renewed")[0]["new_key"] is (options == ["--server"])
    again = Spy()
    later = load_server_setup(site / "serve.toml").credentials
    followed(lambda: later.follow(again, EventLog(log)), lambda: until(lambda: again.calls))  # type: ignore[arg-type]
    assert again.of("post") == [Topic.REGISTRY, Topic.SERVER_CERTIFICATE]


def test_without_a_good_hand_over_clients_are_not_told(site: Site) -> None:
    """Only the registry: clients could not verify the certificate."""
    assert main(["keygen", "--renew", "server", "--server", "--directory", str(site.directory)]) == 0
    thief = Identity.generate()
    write_hand_overs(
        site / "server.handover",
        [HandOver.sign_as_authority("server", site.identities["server"].public, _key(site), thief)],
    )
    own, spy = load_server_setup(site / "serve.toml", with_ledger=False).credentials, Spy()
    followed(lambda: own.follow(spy, EventLog(Diary())), lambda: until(lambda: spy.calls))  # type: ignore[arg-type]
    assert spy.of("post") == [Topic.REGISTRY]


def test_an_expired_registry_is_waited_for(site: Site) -> None:
    registries, log = [Registry(4, {}, expires=1000)], Diary()

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_renew_later)
            await wait_for_registry(lambda: registries[0], EventLog(log), clock=lambda: 1000.0)

    async def _renew_later() -> None:
        await until(lambda: log.facts("waiting"))
        await trio.sleep(0.1)
        registries[0] = Registry(5, {}, expires=1001)

    trio.run(play)
    assert len(log.facts("waiting")) == 1


def test_a_convicted_client_stays_barred_under_its_new_key(site: Site) -> None:
    with load_server_setup(site / "serve.toml").open_ledger() as ledger:
        ledger.note(events.Convicted(3, FalseCount(3, "a lie"), None))
    directory = str(site.directory)
    for name, options in {"client-3": ["--member", "3"], "server": ["--server"]}.items():
        assert main(["keygen", "--renew", name, "--directory", directory, *options]) == 0
    where = ["--authority", f"{directory}/authority.key", "--registry", f"{directory}/registry.secagg"]
    assert main(["enrol", *where, "--member", f"3={directory}/client-3.pem"]) == 0
    plan = load_server_setup(site / "serve.toml")
    assert plan.credentials.registry.members[3] == read_key(site / "client-3.key").public
    with plan.open_ledger() as ledger:
        assert ledger.barred == {3}
        machine = plan.machine(ledger.barred)
        assert machine._admission._barred == {3}


# --- a client -----------------------------------------------------------------------------------------


def client_files(site: Site, log: Diary) -> ClientFiles:
    plan = load_client_setup(site / "join-1.toml")
    ledger = plan.open_ledger()
    return ClientFiles(plan.config.client, plan.credentials, ledger, EventLog(log))


def test_a_client_is_offered_what_is_new_in_its_files(site: Site) -> None:
    log, spy = Diary(), Spy()
    files = client_files(site, log)

    async def steps() -> None:
        site.enrol(version=2)
        await until(lambda: spy.of("registry"))
        main(["keygen", "--renew", "server", "--server", "--directory", str(site.directory)])
        await until(lambda: spy.of("pin"))
        main(["keygen", "--renew", "client-1", "--member", "1", "--directory", str(site.directory)])
        await until(lambda: spy.of("key"))
        site.write("client-1.pem", b"garbage")
        await until(lambda: log.facts("renewal refused"))

    followed(lambda: files.follow(spy), steps)  # type: ignore[arg-type]
    assert spy.of("pin") == [read_certificate(site / "server.pem")]
    assert spy.of("key") == [read_key(site / "client-1.key").public]
    assert len(log.facts("renewal refused")) == 1
    files._ledger.check_owner(1, spy.of("key")[0])  # the ledger has the hand-over


def test_a_client_starts_with_the_pair_that_its_registry_lists(site: Site) -> None:
    old = site.identities["client-1"].public
    renew = ["keygen", "--renew", "client-1", "--directory", str(site.directory)]
    assert main([*renew, "--member", "1"]) == 0
    new = read_key(site / "client-1.key").public
    own = load_client_setup(site / "join-1.toml").credentials
    assert own.identity.public == old
    assert own.other is not None
    assert own.other.identity.public == new
    spy = Spy()
    files = client_files(site, Diary())
    followed(lambda: files.follow(spy), lambda: until(lambda: spy.calls))  # type: ignore[arg-type]
    assert spy.of("key") == [new]

    certificate = (site / "client-1.pem").read_bytes()
    site.write("client-1.pem", (site / "client-1.old.pem").read_bytes())  # not all files are written yet
    own = load_client_setup(site / "join-1.toml").credentials
    assert (own.identity.public, own.other) == (old, None)
    site.write("client-1.pem", certificate)

    site.identities["client-1"] = read_key(site / "client-1.key")
    site.enrol(version=2)
    own = load_client_setup(site / "join-1.toml").credentials
    assert (own.identity.public, own.other) == (new, None)
    assert main([*renew, "--same-key", "--days", "20"]) == 0
    own = load_client_setup(site / "join-1.toml").credentials
    assert own.certificate == read_certificate(site / "client-1.pem")
    assert own.other is not None
    assert own.other.certificate == read_certificate(site / "client-1.old.pem")


def test_a_client_starts_after_several_renewals_whichever_key_is_enrolled(site: Site) -> None:
    keys = [site.identities["client-1"]]
    for _ in range(3):
        assert (
            main(["keygen", "--renew", "client-1", "--member", "1", "--directory", str(site.directory)]) == 0
        )
        keys.append(read_key(site / "client-1.key"))
    newest = keys[-1].public
    for version, key in enumerate(keys, 1):
        site.identities["client-1"] = key
        site.enrol(version=version)
        own = load_client_setup(site / "join-1.toml").credentials
        assert own.identity.public == key.public
        other = None if own.other is None else own.other.identity.public
        assert other == (None if key.public == newest else newest)
        client_files(site, Diary())._ledger.close()  # the ledger has followed


def adopted(site: Site, version: int) -> RegistryAdopted:
    registry = Registry(version, {1: site.identities["client-1"].public})
    return RegistryAdopted(registry, registry.sign(site.identities["authority"]), KeyListing.OWN)


def test_an_adopted_registry_is_stored_unless_there_is_a_newer_one(site: Site) -> None:
    files = client_files(site, Diary())
    files.store(adopted(site, 4))
    assert (site / "registry.secagg").read_bytes() == adopted(site, 4).data
    files.store(adopted(site, 3))
    assert (site / "registry.secagg").read_bytes() == adopted(site, 4).data
    site.write("registry.secagg", b"garbage")
    files.store(adopted(site, 4))
    assert (site / "registry.secagg").read_bytes() == adopted(site, 4).data


def test_an_adopted_certificate_is_stored_and_the_previous_one_is_kept(site: Site) -> None:
    files, old = client_files(site, Diary()), read_certificate(site / "server.pem")
    site.identities["server"] = Identity.generate()
    new = site.certificate("server")
    for _ in range(2):
        files.store(ServerCertificateAdopted(new, old))
        assert read_certificate(site / "server.pem") == new
        assert read_certificate(site / "server.old.pem") == old


def test_a_hand_over_that_comes_after_the_new_key_is_taken_up(site: Site) -> None:
    """As one that the authority signs: it cannot do so before it has the new certificate."""
    log, spy = Diary(), Spy()
    files, path = client_files(site, log), site / "client-1.handover"

    async def steps() -> None:
        main(["keygen", "--renew", "client-1", "--member", "1", "--directory", str(site.directory)])
        statement = path.read_bytes()
        path.unlink()
        await until(lambda: spy.of("key"))
        registry = Registry(5, {1: spy.of("key")[0]})
        files.store(RegistryAdopted(registry, registry.sign(site.identities["authority"]), KeyListing.NEXT))
        assert len(log.facts("caution")) == 1
        path.write_bytes(statement)
        await until(lambda: len(spy.of("key")) == 2)

    followed(lambda: files.follow(spy), steps)  # type: ignore[arg-type]
    assert len(log.facts("new certificate")) == 1
    files._ledger.check_owner(1, spy.of("key")[1])


def test_a_lock_that_somebody_holds_does_not_stop_the_client(site: Site) -> None:
    log = Diary()
    files, handle = client_files(site, log), os.open(site.directory, os.O_RDONLY)
    try:
        lock_file(handle)
        files.store(adopted(site, 4))
        assert len(log.facts("caution")) == 1
    finally:
        os.close(handle)
    files.store(adopted(site, 4))
    assert (site / "registry.secagg").read_bytes() == adopted(site, 4).data


def test_what_cannot_be_stored_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Diary()
    files = client_files(site, log)

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    files.store(adopted(site, 4))
    assert len(log.facts("caution")) == 1


def test_a_certificate_that_could_not_be_stored_is_not_given_up_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file still has the old one, which is nothing new."""
    log, spy = Diary(), Spy()
    files, old = client_files(site, log), read_certificate(site / "server.pem")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        files.store(ServerCertificateAdopted(read_certificate(site / "client-2.pem"), old))

    async def steps() -> None:
        site.enrol(version=2)
        await until(lambda: spy.of("registry"))

    followed(lambda: files.follow(spy), steps)  # type: ignore[arg-type]
    assert len(log.facts("caution")) == 1
    assert spy.of("pin") == []


def test_hand_overs_that_cannot_be_read_are_a_problem_of_the_configuration(site: Site) -> None:
    site.write("client-1.handover", "garbage")
    with pytest.raises(Exception, match=r"client\.hand_over"):
        load_client_setup(site / "join-1.toml")
    write_hand_overs(site / "none", [])
    site.change("join-1.toml", "[policy]", 'hand_over = "none"\n[policy]')
    load_client_setup(site / "join-1.toml")


# --- training -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_that_trains_keeps_its_state_and_ledger_under_a_new_key(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, algorithm='name = "ditto"\nclip = 5.0', rounds=4)
    site.train(until=lambda log: len(log.facts("round")) >= 2)
    directory = str(site.directory)
    before = read_ledger(site / "client-1.ledger").spend
    assert main(["keygen", "--renew", "client-1", "--member", "1", "--directory", directory]) == 0
    where = ["--authority", f"{directory}/authority.key", "--registry", f"{directory}/registry.secagg"]
    assert main(["enrol", *where, "--member", f"1={directory}/client-1.pem"]) == 0
    state = (site / "state-1").read_bytes()
    plan = load_client_setup(site / "join-1.toml")
    assert plan.training is not None
    assert (site / "state-1").read_bytes() == state
    site.train()
    assert (site / "personal-1.npz").exists()
    reading = read_ledger(site / "client-1.ledger")
    assert reading.owner.identity == certificate_key(read_certificate(site / "client-1.pem"))
    assert reading.spend.unnoised > before.unnoised > 0


@pytest.mark.slow
def test_a_registry_that_changes_during_training_disturbs_nobody(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, rounds=8)
    where = ["--authority", f"{tmp_path}/authority.key", "--registry", f"{tmp_path}/registry.secagg"]
    renewed: list[int] = []

    def rotate(log: Diary) -> bool:
        if len(log.facts("round")) >= 2 and not renewed:
            renewed.append(main(["enrol", *where, "--expires", "2099-01-01"]))
            renewed.append(main(["keygen", "--renew", "server", "--server", "--directory", str(tmp_path)]))
        return False

    log = site.train(until=lambda log: rotate(log) or len(log.facts("round")) >= 8)
    assert renewed == [0, 0]
    assert [line["clients"] for line in log.facts("round")] == [4] * 8
    assert log.facts("renewed")
    assert not any(diary.facts("disconnected") for diary in site.diaries.values())
    new = read_key(tmp_path / "server.key").public
    assert audit_run(site / "run", server_key=new).integrity.problems == ()


def test_a_registry_that_expires_in_a_round_fails_the_round_and_not_the_server(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, trust="malicious_server")
    section, terms, own = load_deployment(site / "train.toml")
    expired = Registry(2, own.registry.members, expires=1)
    own.current = replace(own.current, registry=expired)
    transport = ConnectedClients(section, terms, own, None, None, lambda _event: None)  # type: ignore[arg-type]
    settings = SumSettings(corrupt=1, dropout=0.2)
    plan = SessionPlan(terms.table, settings, (0, 1, 2, 3), 0, SetLog(), lambda _stage: None)
    with pytest.raises(TooFewClients, match="registry 2 expired"):
        transport.session(plan)

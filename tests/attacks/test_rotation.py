"""Attacks on the renewal of keys: by a server, or by a thief of an old key that poses as one.

The prize is a client that trusts keys of the attacker's choice, or a ledger that another key takes over. Each
attack succeeds if its guard is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from secagg import hand_over, identity_registry
from secagg.canonical_msgpack import Reader
from secagg.errors import ForeignLedger, SecaggError
from secagg.hand_over import HandOver, HandOverSigner
from secagg.identity_registry import Registry, SignedRegistry
from secagg.keys import Identity
from secagg.ledger import ClientLedger
from secagg.net import client_keys
from secagg.net.certificates import make_certificate
from secagg.net.client_keys import certificate_notice
from secagg.net.events import KeysRefused, RegistryAdopted, ServerCertificateAdopted
from secagg.net.notices import Notice, Topic
from secagg.net.tls import ClientTls
from secagg.trust_levels import Trust
from tests.attacks.guards import allow
from tests.attacks.network import Site, run

AUTHORITY, OLD_HOST, HOST, THIEF, VICTIM, SYBIL = (Identity.from_secret(bytes([n]) * 32) for n in range(1, 7))
NOW = int(time.time())
Removal = Callable[[pytest.MonkeyPatch], None]


def pem(identity: Identity, days: int = 10) -> bytes:
    return make_certificate(identity, now=NOW, days=days)


@dataclass
class Target(Site):
    """A client with registry 3 and the certificate of `HOST`, and a server that sends it one notice."""

    honest: int = 1
    hostile: int = 0
    trust: Trust = Trust.MALICIOUS
    found: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.server_identity, self.server_certificate = HOST, pem(HOST)
        self.registry = self.with_sybil(3, sybil=False)

    def with_sybil(self, version: int, *, sybil: bool = True) -> Registry:
        """A registry that also lists a client of the server's own making."""
        more = {99: SYBIL.public} if sybil else {}
        return Registry(version, {**self.registry.members, **more})

    def receives(self, notice: Notice) -> bool:
        """Whether the client adopts it. Otherwise, it has said why not, and is still connected."""
        run(lambda: self._play(notice))
        (event,) = self.found
        if isinstance(event, KeysRefused):
            return False
        assert isinstance(event, RegistryAdopted | ServerCertificateAdopted)
        return True

    async def _play(self, notice: Notice) -> None:
        async with self.server() as server:
            own = ClientTls(self.identities[0], self.certificates[0], pem(HOST))
            client = self.client(
                0, server.address, context=own, authority=AUTHORITY.public, on_event=self._note
            )
            async with client:
                await server.wait_for_clients(1)
                server.post(notice)
                await server.flush()
                assert server.connected == (0,)

    def _note(self, event: object) -> None:
        if isinstance(event, KeysRefused | RegistryAdopted | ServerCertificateAdopted):
            self.found.append(event)


def no_version_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_keys, "check_registry_is_current", allow)


def no_signature_of_registries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SignedRegistry, "verified", lambda self, **_: self.claimed)


def no_end_of_messages(patch: pytest.MonkeyPatch) -> None:
    class Lax(Reader):
        def end(self) -> None:
            pass

    patch.setattr(identity_registry, "Reader", Lax)


def no_signature_of_hand_overs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hand_over, "verify", allow)


def no_chain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_keys, "chain_of", allow)


REGISTRIES: dict[str, tuple[Callable[[Target], bytes], Removal]] = {
    "an older registry": (lambda site: site.with_sybil(2).sign(AUTHORITY), no_version_check),
    "the same version with other content": (
        lambda site: site.with_sybil(3).sign(AUTHORITY),
        no_version_check,
    ),
    "a foreign authority": (lambda site: site.with_sybil(4).sign(THIEF), no_signature_of_registries),
    "bytes after the end": (lambda site: site.with_sybil(4).sign(AUTHORITY) + b"\0", no_end_of_messages),
}


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_server_hands_out_a_registry_of_its_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, remove = REGISTRIES[name]
    site = Target()
    assert not site.receives(Notice(Topic.REGISTRY, make(site)))
    remove(monkeypatch)
    site = Target()
    assert site.receives(Notice(Topic.REGISTRY, make(site)))


def test_a_server_fills_the_memory_of_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard: `MAX_KEY_NOTICE`, before anything is parsed. The frame itself is bounded by its link."""
    site = Target()
    assert site.receives(Notice(Topic.REGISTRY, site.with_sybil(4).sign(AUTHORITY)))
    monkeypatch.setattr(client_keys, "MAX_KEY_NOTICE", 100)
    site = Target()
    assert not site.receives(Notice(Topic.REGISTRY, site.with_sybil(4).sign(AUTHORITY)))


@pytest.mark.parametrize("body", [b"", b"\x94", b"garbage" * 100, bytes(1 << 16)], ids=range(4))
@pytest.mark.parametrize("topic", [Topic.REGISTRY, Topic.SERVER_CERTIFICATE])
def test_garbage_changes_nothing(topic: Topic, body: bytes) -> None:
    assert not Target().receives(Notice(topic, body))


CERTIFICATES: dict[str, tuple[HandOver, Removal]] = {
    "signed by a third key": (
        HandOver("server", HOST.public, THIEF.public, HandOverSigner.OLD_KEY, bytes(64)),
        no_signature_of_hand_overs,
    ),
    "of a third key": (HandOver.sign("server", VICTIM, THIEF.public), no_chain),
    "replayed, of the key before": (HandOver.sign("server", OLD_HOST, THIEF.public), no_chain),
    "of a client": (HandOver.sign(0, HOST, THIEF.public), no_chain),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_thief_makes_clients_pin_its_own_certificate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statement, remove = CERTIFICATES[name]
    notice = certificate_notice(pem(THIEF), statement)
    assert not Target().receives(notice)
    remove(monkeypatch)
    assert Target().receives(notice)


def test_a_server_returns_to_an_earlier_certificate_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    notice = certificate_notice(pem(HOST, 5), None)
    assert not Target().receives(notice)
    monkeypatch.setattr(client_keys, "expiry", lambda certificate: certificate == pem(HOST, 5))
    assert Target().receives(notice)


# --- ledgers ------------------------------------------------------------------------------------------

LEDGERS: dict[str, tuple[Sequence[HandOver], int, str]] = {
    "signed by a third key": (
        [HandOver(5, VICTIM.public, THIEF.public, HandOverSigner.OLD_KEY, bytes(64))],
        5,
        "verify",
    ),
    "signed by a foreign authority": (
        [HandOver.sign_as_authority(5, VICTIM.public, THIEF.public, SYBIL)],
        5,
        "verify",
    ),
    "for another member": ([HandOver.sign(6, VICTIM, THIEF.public)], 5, "owner"),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_thief_takes_over_a_ledger(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements, member, guard = LEDGERS[name]
    path = tmp_path / "ledger"
    ClientLedger.create(path, member=5, identity=VICTIM.public).close()

    def take_over() -> None:
        more: dict[str, Any] = {"hand_overs": statements, "authority": AUTHORITY.public}
        ClientLedger.open(path, member=member, identity=THIEF.public, **more).close()

    with pytest.raises(ForeignLedger):
        take_over()
    if guard == "verify":
        monkeypatch.setattr(hand_over, "verify", allow)
    else:
        monkeypatch.setattr("secagg.ledger.base_ledger.chain_of", lambda found, *_, **__: tuple(found))
        monkeypatch.setattr("secagg.ledger.base_ledger.Owner.after", lambda self, _: _of_thief(self))
    take_over()


def _of_thief(owner: Any) -> Any:
    return type(owner).client(owner.member, THIEF.public)


def test_a_hand_over_is_replayed_after_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard: a key that has handed a ledger over never gets it again, in `Ledger._handed_over`."""
    path = tmp_path / "ledger"
    ClientLedger.create(path, member=5, identity=THIEF.public).close()
    forward, back = HandOver.sign(5, THIEF, VICTIM.public), HandOver.sign(5, VICTIM, THIEF.public)

    def opened(key: Identity, statement: HandOver) -> None:
        ClientLedger.open(path, member=5, identity=key.public, hand_overs=[statement]).close()

    opened(VICTIM, forward)
    for statement in (forward, back):
        with pytest.raises(SecaggError):
            opened(THIEF, statement)
    monkeypatch.setattr(ClientLedger, "_past", property(lambda _: set(), allow), raising=False)
    opened(THIEF, back)

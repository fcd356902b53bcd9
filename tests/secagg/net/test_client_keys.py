"""The keys that a client uses and trusts: what changes them, and what does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from secagg.canonical_msgpack import encode_fields
from secagg.client_memory import VolatileMemory
from secagg.errors import (
    SERVER,
    ExpiredRegistry,
    ForeignLedger,
    MalformedMessage,
    OversizeMessage,
    ParameterError,
    PeerError,
    WrongHandOver,
    WrongRegistry,
)
from secagg.hand_over import HandOver
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger
from secagg.net.certificates import make_certificate
from secagg.net.client_keys import ClientKeys, certificate_notice
from secagg.net.event_log import render
from secagg.net.events import KeyListing, KeysRefused, RegistryAdopted, ServerCertificateAdopted
from secagg.net.handshake import ServerConnector
from secagg.net.notices import MAX_KEY_NOTICE, Notice, Topic
from secagg.net.settings import Address, Patience
from secagg.net.tls import ClientTls, server_name
from secagg.trust_levels import Trust

NOW = int(time.time())
DAY = 86400
OWN, NEW, OTHER, HOST, NEXT_HOST, AUTHORITY, THIEF = (
    Identity.from_secret(bytes([n]) * 32) for n in range(1, 8)
)


def pem(identity: Identity, days: int = 10, now: int = NOW) -> bytes:
    return make_certificate(identity, now=now, days=days)


def registry(version: int, key: Identity | None = OWN, expires: int = 0) -> Registry:
    members = {9: OTHER.public} | ({} if key is None else {5: key.public})
    return Registry(version, members, expires)


class Keys(ClientKeys):
    """Those of client 5, who has registry 3."""

    def __init__(self, **changes: Any) -> None:
        self.memory = changes.pop("memory", VolatileMemory())
        settings: dict[str, Any] = {
            "trust": Trust.MALICIOUS,
            "identity": OWN,
            "registry": registry(3),
            "authority": AUTHORITY.public,
            "tls": ClientTls(OWN, pem(OWN), pem(HOST)),
            **changes,
        }
        super().__init__(5, memory=self.memory, **settings)

    def take(self, notice: Notice, now: int = NOW) -> Any:
        """Make the change, if there is one, and return its event."""
        change = self.examine(notice, now)
        if change is None:
            return None
        change.apply()
        return change.event

    def adopt(self, new: Registry, authority: Identity = AUTHORITY) -> Any:
        return self.take(Notice(Topic.REGISTRY, new.sign(authority)))

    @property
    def version(self) -> int:
        return int(self.of_machine["registry"].version)

    def connection(self) -> ServerConnector:
        connector = ServerConnector(Address("localhost", 1), member=5, context=None, patience=Patience())
        self.aim(connector)
        return connector


# --- registries ---------------------------------------------------------------------------------------


def test_a_newer_registry_is_adopted_and_remembered() -> None:
    keys = Keys()
    event = keys.adopt(registry(4))
    assert isinstance(event, RegistryAdopted)
    assert (event.registry.version, event.listing, event.data) == (
        4,
        KeyListing.OWN,
        registry(4).sign(AUTHORITY),
    )
    assert keys.version == 4
    assert keys.memory.registry == (4, registry(4).digest)
    keys.check_usable(NOW)


def test_the_same_registry_changes_nothing() -> None:
    keys = Keys()
    assert keys.adopt(registry(3)) is None
    assert keys.adopt(registry(3), THIEF) is None


def test_a_client_whose_memory_is_ahead_adopts_what_it_remembers() -> None:
    keys = Keys()
    keys.memory.remember_registry(4, registry(4).digest)
    keys.adopt(registry(4))
    assert keys.version == 4


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (registry(2).sign(AUTHORITY), WrongRegistry),
        (registry(3, NEW).sign(AUTHORITY), WrongRegistry),
        (registry(4).sign(THIEF), WrongRegistry),
        (registry(4).sign(OWN), WrongRegistry),
        (b"", WrongRegistry),
        (b"garbage", WrongRegistry),
        (registry(4).sign(AUTHORITY) + b"\0", WrongRegistry),
        (bytes(MAX_KEY_NOTICE + 1), OversizeMessage),
    ],
    ids=["older", "same version", "thief", "not the authority", "empty", "garbage", "appended", "oversize"],
)
def test_other_registries_are_refused(data: bytes, error: type[PeerError]) -> None:
    keys = Keys()
    with pytest.raises(error):
        keys.take(Notice(Topic.REGISTRY, data))
    assert keys.version == 3
    assert keys.memory.registry == (3, registry(3).digest)


def test_what_was_seen_is_not_forgotten_with_the_process() -> None:
    memory = VolatileMemory()
    Keys(memory=memory).adopt(registry(4))
    for old in (registry(3), registry(4, NEW)):
        with pytest.raises(WrongRegistry):
            Keys(memory=memory, registry=old)


def test_without_an_authority_no_registry_is_adopted_or_judged() -> None:
    keys = Keys(authority=None, registry=registry(3, NEW, expires=1))
    assert keys.adopt(registry(4)) is None
    keys.check_usable(NOW)
    assert Keys(authority=None, tls=None).largest_notice == 0
    assert Keys(tls=None).largest_notice == keys.largest_notice == MAX_KEY_NOTICE


def test_under_curious_server_a_registry_counts_but_machines_get_none() -> None:
    keys = Keys(trust=Trust.CURIOUS, identity=None)
    assert keys.of_machine == {"identity": None, "registry": None}
    keys.adopt(registry(4))
    assert keys.of_machine == {"identity": None, "registry": None}
    with pytest.raises(WrongRegistry):
        keys.adopt(registry(3))
    keys.adopt(registry(5, NEW))
    with pytest.raises(WrongRegistry, match="does not list this client's key"):
        keys.check_usable(NOW)


def test_a_first_registry_can_come_from_the_server() -> None:
    keys = Keys(trust=Trust.CURIOUS, identity=None, registry=None)
    keys.check_usable(NOW)
    assert keys.adopt(registry(1)).listing is KeyListing.OWN
    keys.check_usable(NOW)


def test_a_client_that_is_known_by_its_context_only_takes_any_listing_for_its_own() -> None:
    keys = Keys(trust=Trust.CURIOUS, identity=None, tls=None)
    assert keys.adopt(registry(4, NEW)).listing is KeyListing.OWN
    assert keys.adopt(registry(5, None)).listing is KeyListing.NONE


def test_an_expired_registry_is_not_used_until_there_is_a_newer_one() -> None:
    keys = Keys(registry=registry(3, expires=NOW))
    keys.check_usable(NOW - 1)
    with pytest.raises(ExpiredRegistry):
        keys.check_usable(NOW)
    keys.adopt(registry(4, expires=NOW + 1))
    keys.check_usable(NOW)


@pytest.mark.parametrize(("key", "listing"), [(OTHER, KeyListing.OTHER), (None, KeyListing.NONE)])
def test_a_client_that_is_not_listed_says_so_and_takes_no_part(
    key: Identity | None, listing: KeyListing
) -> None:
    keys = Keys()
    members = {} if key is None else {5: key.public}
    event = keys.adopt(Registry(4, members))
    assert event.listing is listing
    line = render(event)
    assert line is not None
    assert "listed" in str(line.facts["own_key"])
    with pytest.raises(WrongRegistry):
        keys.check_usable(NOW)


# --- the client's own key -----------------------------------------------------------------------------


def test_a_new_key_is_used_when_a_registry_lists_it() -> None:
    keys = Keys()
    keys.offer(NEW, pem(NEW))
    assert keys.of_machine["identity"] is OWN
    assert keys.adopt(registry(4, NEW)).listing is KeyListing.NEXT
    assert keys.of_machine["identity"] is NEW
    keys.check_usable(NOW)


def test_a_new_key_is_used_at_once_if_it_is_listed_already() -> None:
    keys = Keys(trust=Trust.CURIOUS, identity=None)
    assert keys.adopt(registry(4, NEW)).listing is KeyListing.OTHER
    keys.offer(NEW, pem(NEW))
    keys.check_usable(NOW)
    assert keys.of_machine["identity"] is None


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize("offered_first", [True, False])
def test_the_ledger_follows_the_new_key_at_once(tmp_path: Path, trust: Trust, offered_first: bool) -> None:
    """Under both trust levels: the key that it has now may be lost before the client is started again."""
    path = tmp_path / "ledger"
    with ClientLedger.create(path, member=5, identity=OWN.public) as ledger:
        keys = Keys(trust=trust, identity=OWN if trust is Trust.MALICIOUS else None, memory=ledger)
        ledger.offer([HandOver.sign(5, OWN, NEW.public)])
        if offered_first:
            keys.offer(NEW, pem(NEW))
        keys.adopt(registry(4, NEW))
        keys.offer(NEW, pem(NEW))
    ClientLedger.open(path, member=5, identity=NEW.public).close()


def test_a_key_to_which_the_ledger_is_not_handed_over_is_not_used(tmp_path: Path) -> None:
    with ClientLedger.create(tmp_path / "ledger", member=5, identity=OWN.public) as ledger:
        keys = Keys(trust=Trust.CURIOUS, identity=None, memory=ledger)
        old = keys.connection().context
        keys.adopt(registry(4, NEW))
        with pytest.raises(ForeignLedger):
            keys.offer(NEW, pem(NEW))
        assert keys.connection().context is old


def test_a_statement_may_come_after_the_registry(tmp_path: Path) -> None:
    """Until then, the client has no key that is listed, and takes part in nothing."""
    with ClientLedger.create(tmp_path / "ledger", member=5, identity=OWN.public) as ledger:
        keys = Keys(memory=ledger)
        keys.offer(NEW, pem(NEW))
        keys.adopt(registry(4, NEW))
        with pytest.raises(WrongRegistry):
            keys.check_usable(NOW)
        assert ledger.offer([HandOver.sign(5, OWN, NEW.public)])
        keys.offer(NEW, pem(NEW))
        keys.check_usable(NOW)
        assert keys.of_machine["identity"] is NEW


def test_a_ledger_without_a_key_needs_no_statement(tmp_path: Path) -> None:
    with ClientLedger.create(tmp_path / "ledger", member=5) as ledger:
        keys = Keys(trust=Trust.CURIOUS, identity=None, memory=ledger)
        old = keys.connection().context
        keys.offer(NEW, pem(NEW))
        keys.adopt(registry(4, NEW))
        assert keys.connection().context is not old
        keys.check_usable(NOW)


def test_if_the_server_refuses_one_key_the_other_is_tried() -> None:
    keys = Keys()
    old = keys.connection().context
    keys.note_refused()
    assert keys.connection().context is old
    keys.offer(NEW, pem(NEW))
    assert keys.connection().context is old
    keys.note_refused()
    new = keys.connection().context
    assert new is not old
    keys.note_connected()  # no registry lists the new key yet
    assert keys.connection().context is new
    assert keys.of_machine["identity"] is OWN
    keys.note_refused()
    assert keys.connection().context is old


def test_another_certificate_of_the_same_key_is_used_if_the_old_one_is_refused() -> None:
    keys = Keys()
    keys.offer(OWN, pem(OWN, 20))
    old = keys.connection().context
    keys.note_connected()
    assert keys.connection().context is old
    keys.note_refused()
    new = keys.connection().context
    assert new is not old
    keys.note_connected()
    assert keys.connection().context is new
    keys.note_refused()
    assert keys.connection().context is old


def test_without_its_certificates_a_client_cannot_change_them() -> None:
    keys = Keys(tls=None)
    assert keys.connection().server_name is None
    assert keys.take(certificate_notice(pem(NEXT_HOST), None)) is None
    with pytest.raises(ParameterError):
        keys.offer(NEW, pem(NEW))
    with pytest.raises(ParameterError):
        Keys().offer(NEW, pem(OTHER))


def test_fixed_keys_change_nothing() -> None:
    keys = ClientKeys.fixed()
    keys.check_usable(NOW)
    assert keys.examine(Notice(Topic.REGISTRY, b""), NOW) is None
    assert keys.examine(certificate_notice(b"", None), NOW) is None


# --- the server's certificate -------------------------------------------------------------------------


def test_a_certificate_is_adopted_if_the_pinned_key_hands_over_to_its_key() -> None:
    keys = Keys()
    keys.offer(NEW, pem(NEW))
    event = keys.take(certificate_notice(pem(NEXT_HOST), HandOver.sign(SERVER, HOST, NEXT_HOST.public)))
    assert event == ServerCertificateAdopted(pem(NEXT_HOST), pem(HOST))
    assert render(event) is not None
    assert keys.connection().server_name == server_name(pem(NEXT_HOST))
    keys.note_refused()
    assert keys.connection().server_name == server_name(pem(NEXT_HOST))


def test_a_certificate_of_the_same_key_is_adopted_if_it_ends_later() -> None:
    keys = Keys()
    assert keys.take(certificate_notice(pem(HOST), None)) is None
    assert keys.take(certificate_notice(pem(HOST, 11), None)).certificate == pem(HOST, 11)
    with pytest.raises(WrongHandOver, match="ends before"):
        keys.take(certificate_notice(pem(HOST), None))


@pytest.mark.parametrize(
    ("certificate", "statement"),
    [
        (pem(NEXT_HOST), HandOver.sign(SERVER, THIEF, NEXT_HOST.public)),
        (pem(NEXT_HOST), HandOver.sign(5, HOST, NEXT_HOST.public)),
        (pem(NEXT_HOST), HandOver.sign(SERVER, HOST, THIEF.public)),
        (pem(NEXT_HOST), HandOver.sign_as_authority(SERVER, HOST.public, NEXT_HOST.public, AUTHORITY)),
        (pem(THIEF), HandOver.sign(SERVER, HOST, NEXT_HOST.public)),
        (pem(NEXT_HOST, 1, NOW - 3 * DAY), HandOver.sign(SERVER, HOST, NEXT_HOST.public)),
        (pem(NEXT_HOST, 9, NOW + 3 * DAY), HandOver.sign(SERVER, HOST, NEXT_HOST.public)),
        (pem(HOST, 9), None),
        (b"garbage", None),
    ],
    ids=[
        "third key", "a client", "another key", "authority", "another certificate", "expired", "too early",
        "ends earlier", "garbage",
    ],
)  # fmt: skip
def test_nobody_else_can_change_it(certificate: bytes, statement: HandOver | None) -> None:
    keys = Keys()
    with pytest.raises(WrongHandOver):
        keys.take(certificate_notice(certificate, statement))
    assert keys.connection().server_name == server_name(pem(HOST))


@pytest.mark.parametrize("other", [OWN, OTHER, AUTHORITY], ids=["itself", "a client", "authority"])
def test_the_certificate_of_another_party_is_not_adopted(other: Identity) -> None:
    """With such a file, the client would refuse to start again."""
    keys = Keys(registry=Registry(3, {5: OWN.public, 6: OTHER.public}))
    with pytest.raises(WrongHandOver, match="authority"):
        keys.take(certificate_notice(pem(other), HandOver.sign(SERVER, HOST, other.public)))
    assert keys.connection().server_name == server_name(pem(HOST))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        encode_fields(pem(NEXT_HOST)),
        encode_fields(pem(NEXT_HOST), b""),
        encode_fields(pem(NEXT_HOST), b"garbage"),
        encode_fields(pem(HOST, 11), b"") + b"\0",
    ],
    ids=range(6),
)
def test_a_malformed_announcement_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Keys().take(Notice(Topic.SERVER_CERTIFICATE, body))


def test_a_long_announcement_is_refused() -> None:
    body = encode_fields(pem(HOST, 11) + b" " * MAX_KEY_NOTICE, b"")
    with pytest.raises(OversizeMessage):
        Keys().take(Notice(Topic.SERVER_CERTIFICATE, body))


def test_a_refusal_is_logged_in_words() -> None:
    line = render(KeysRefused(WrongRegistry(SERVER, "too old")))
    assert line is not None
    assert line.facts == {"error": "WrongRegistry", "reason": "server: too old"}

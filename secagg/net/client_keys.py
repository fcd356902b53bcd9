"""The keys that a client uses and trusts, and how they change while it runs.

A client pins the public key of the authority and the certificate of the server. A newer registry is adopted
if the authority signed it, whatever delivers it. Another certificate of the server is adopted if the pinned
key signed it, or handed over to its key. The client's own new key is used as soon as a registry lists it.
Nothing here trusts the connection over which the bytes came.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from secagg.canonical_msgpack import Reader, encode_fields
from secagg.client_checks import check_registry_is_current
from secagg.client_memory import Memory, VolatileMemory
from secagg.errors import (
    SERVER,
    CertificateError,
    ForeignLedger,
    OversizeMessage,
    ParameterError,
    PeerError,
    WrongHandOver,
    WrongRegistry,
)
from secagg.hand_over import HandOver, chain_of
from secagg.identity_registry import Registry, SignedRegistry
from secagg.keys import Identity
from secagg.net.certificates import certificate_key, certificate_pem, check_dates, expiry
from secagg.net.events import (
    KeyListing,
    KeysRefused,
    OnClientEvent,
    RegistryAdopted,
    ServerCertificateAdopted,
)
from secagg.net.handshake import ServerConnector
from secagg.net.notices import MAX_KEY_NOTICE, Notice, Topic
from secagg.net.nursery_and_threads import RunFunction
from secagg.net.tls import ClientTls
from secagg.trust_levels import Trust


def certificate_notice(certificate: bytes, statement: HandOver | None) -> Notice:
    """Return the notice by which a server announces its new certificate (PEM). `statement` hands the server's
    old key over to the new one; None if the key is the same."""
    signed = b"" if statement is None else statement.encode()
    return Notice(Topic.SERVER_CERTIFICATE, encode_fields(certificate, signed))


@dataclass(frozen=True)
class KeyChange:
    """A change that was found to be right. Deliver `event`, and then call `apply`, which may raise."""

    event: RegistryAdopted | ServerCertificateAdopted
    apply: Callable[[], None]


class ClientKeys:
    """The keys of client `member`. `authority` is the public key that signs registries; None: no registry is
    ever adopted. Without `tls`, neither is a certificate of the server. `registry` is the newest one that the
    client has; under `curious_server`, it is used for versions and expiry only. Raises `WrongRegistry` if
    `memory` has seen a newer one."""

    def __init__(
        self,
        member: int,
        *,
        trust: Trust,
        memory: Memory,
        identity: Identity | None,
        registry: Registry | None,
        authority: bytes | None,
        tls: ClientTls | None,
    ) -> None:
        self._member = member
        self._trust = trust
        self._memory = memory
        self._identity = identity
        self._registry = registry
        self._authority = authority
        self._tls = tls
        self._next: ClientTls | None = None  # its new key, which no registry lists yet, or other certificate
        self._tries_next = False
        if authority is not None and registry is not None:
            check_registry_is_current(registry, memory)
            memory.remember_registry(registry.version, registry.digest)

    @classmethod
    def fixed(cls) -> Self:
        """Return keys of a client whose machines and connections have their own: nothing changes them."""
        return cls(
            0,
            trust=Trust.CURIOUS,
            memory=VolatileMemory(),
            identity=None,
            registry=None,
            authority=None,
            tls=None,
        )

    # --- for machines and connections ---

    @property
    def largest_notice(self) -> int:
        """The bytes of the largest notice about keys that the client reads."""
        return 0 if self._authority is None and self._tls is None else MAX_KEY_NOTICE

    @property
    def of_machine(self) -> dict[str, Any]:
        """The arguments `identity` and `registry` of a `ClientMachine`."""
        unsigned = self._trust is Trust.CURIOUS and self._authority is not None
        return {"identity": self._identity, "registry": None if unsigned else self._registry}

    def check_usable(self, now: int) -> None:
        """Raise `WrongRegistry` if the registry lists another key for this client, or none, and
        `ExpiredRegistry` if it has expired at `now`, in Unix seconds. Without an authority, do nothing."""
        if self._authority is None or self._registry is None:
            return
        if self._listing(self._registry) is not KeyListing.OWN:
            raise WrongRegistry(SERVER, f"registry {self._registry.version} does not list this client's key")
        self._registry.check_current(now)

    def aim(self, connector: ServerConnector) -> None:
        """Set the certificates that the next connection uses."""
        if self._tls is not None:
            tls = self._next if self._tries_next and self._next is not None else self._tls
            connector.context, connector.server_name = tls.context, tls.server_name

    def note_connected(self) -> None:
        """After a connection succeeded with another certificate of the same key, go on with this one."""
        if self._tries_next and self._next is not None and self._next.identity.public == self._public:
            self._tls, self._next, self._tries_next = self._next, self._tls, False

    def note_refused(self) -> None:
        """After a connection failed, try the client's other key, if it has two."""
        self._tries_next = self._next is not None and not self._tries_next

    # --- changes ---

    async def change(
        self, examine: Callable[[], KeyChange | None], *, work: RunFunction, on_event: OnClientEvent
    ) -> bool:
        """Make the change that `examine` returns, and return whether there is one. If it raises `PeerError`,
        all stays as it is. Raises what prevents the client from remembering the change."""
        try:
            change = await work(examine)
        except PeerError as error:
            on_event(KeysRefused(error))
            return False
        if change is not None:
            on_event(change.event)
            await work(change.apply)
        return change is not None

    def examine(self, notice: Notice, now: int) -> KeyChange | None:
        """Return the change that a notice of the server asks for; None if there is nothing to change. Raises
        `PeerError` if it must not be made."""
        if notice.topic is Topic.REGISTRY:
            return self.examine_registry(notice.body)
        return self._examine_certificate(notice.body, now)

    def examine_registry(self, data: bytes) -> KeyChange | None:
        """Return the change to the registry in the file `data`; None if it is the one in use. Raises
        `WrongRegistry` if it is older, or another one of the same version, or not signed by the authority."""
        if self._authority is None:
            return None
        if len(data) > MAX_KEY_NOTICE:
            raise OversizeMessage(SERVER, f"a registry of {len(data)} bytes")
        signed = SignedRegistry.parse(data)
        if self._registry is not None and signed.claimed.digest == self._registry.digest:
            return None
        registry = signed.verified(authority=self._authority)
        check_registry_is_current(registry, self._memory)
        event = RegistryAdopted(registry, data, self._listing(registry))
        return KeyChange(event, lambda: self._take_registry(registry))

    def _take_registry(self, registry: Registry) -> None:
        self._memory.remember_registry(registry.version, registry.digest)
        self._registry = registry
        with suppress(ForeignLedger):  # until the memory has the statement, and the key is offered again
            self._use_listed_key()

    def _examine_certificate(self, body: bytes, now: int) -> KeyChange | None:
        if self._tls is None:
            return None
        if len(body) > MAX_KEY_NOTICE:
            raise OversizeMessage(SERVER, f"a certificate of {len(body)} bytes")
        reader = Reader(body, sender=SERVER)
        reader.array(2)
        certificate, signed = reader.blob(), reader.blob()
        reader.end()
        pinned = self._tls.server
        if certificate == pinned:
            return None
        try:
            _check_successor(certificate, signed, pinned=pinned, now=now)
            self._check_not_of_another_party(certificate)
        except CertificateError as error:
            raise WrongHandOver(SERVER, f"its new certificate is {error}") from None
        pem = certificate_pem(certificate)
        return KeyChange(ServerCertificateAdopted(pem, pinned), lambda: self.pin(pem))

    def _check_not_of_another_party(self, certificate: bytes) -> None:
        """Raise `WrongHandOver` if the key of the server's certificate is that of a client or the authority:
        with such a file, the client would not start again."""
        members = () if self._registry is None else self._registry.members.values()
        if certificate_key(certificate) in (self._authority, *members):
            raise WrongHandOver(SERVER, "its new certificate is that of a client, or of the authority")

    def pin(self, certificate: bytes) -> None:
        """Trust `certificate` (PEM) of the server, and no other, from the next connection on. Raises
        `CertificateError` if it does not have the form that `make_certificate` gives it."""
        tls = self._own()
        self._tls = replace(tls, server=certificate)
        if self._next is not None:
            self._next = replace(self._next, server=certificate)

    def offer(self, identity: Identity, certificate: bytes) -> None:
        """Use another key and certificate of this client as soon as a registry lists the key, or, to connect,
        if the server refuses the old one. Another certificate of the key in use is used if the server refuses
        the one in use. Raises `ParameterError` or `CertificateError` if they do not belong together, and
        `ForeignLedger` if a registry lists the key, and the memory is not handed over to it."""
        self._next = ClientTls(identity, certificate, self._own().server)
        self._use_listed_key()

    def _use_listed_key(self) -> None:
        key = None if self._registry is None else self._registry.members.get(self._member)
        if self._next is not None and self._next.identity.public == key != self._public:
            self._memory.hand_over(self._member, key)
            self._tls, self._next, self._tries_next = self._next, None, False
            if self._identity is not None:
                self._identity = self._tls.identity

    def _own(self) -> ClientTls:
        if self._tls is None:
            raise ParameterError("give open_client a ClientTls to change keys later", parameter="context")
        return self._tls

    @property
    def _public(self) -> bytes | None:
        """The public key in use; None if only a context has it."""
        if self._identity is not None:
            return self._identity.public
        return None if self._tls is None else self._tls.identity.public

    def _listing(self, registry: Registry) -> KeyListing:
        key = registry.members.get(self._member)
        if key is None:
            return KeyListing.NONE
        if self._public is None or key == self._public:
            return KeyListing.OWN
        found = self._next is not None and key == self._next.identity.public
        return KeyListing.NEXT if found else KeyListing.OTHER


def _check_successor(certificate: bytes, signed: bytes, *, pinned: bytes, now: int) -> None:
    """Raise `WrongHandOver` or `CertificateError` unless `certificate` may take the place of `pinned`: it is
    valid now, and of the same key with a later end, or the old key has `signed` a hand-over to its key."""
    old, new = certificate_key(pinned), certificate_key(certificate)
    check_dates(certificate, now=now)
    if old == new:
        if expiry(certificate) <= expiry(pinned):
            raise WrongHandOver(SERVER, "its new certificate ends before the one that this client has")
        return
    statement = HandOver.parse(signed, sender=SERVER)
    chain_of([statement], SERVER, old=old, new=new, authority=None)

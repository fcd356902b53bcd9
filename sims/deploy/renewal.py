"""Takes up new keys, certificates and registries of a running server or client, without a restart.

The files are looked at every few seconds, and at once on SIGHUP. What is not valid is refused with one line
of the log, and what was in force stays in force.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from secagg.errors import SERVER, ExpiredRegistry, SecaggError, WrongHandOver
from secagg.hand_over import HandOver, chain_of
from secagg.identity_registry import Registry, verify_registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger
from secagg.ledger.file_lock import try_lock_file
from secagg.net.atomic_files import PUBLIC
from secagg.net.client import Client
from secagg.net.client_keys import certificate_notice
from secagg.net.event_log import EventLog
from secagg.net.events import ClientNetworkEvent, KeyListing, RegistryAdopted, ServerCertificateAdopted
from secagg.net.identity_and_registry_files import (
    CERTIFICATE,
    REGISTRY,
    bundle_path,
    hand_over_path,
    old_path,
    read_certificate,
    read_hand_overs,
)
from secagg.net.notices import Notice, Topic
from secagg.net.server import Server
from secagg.net.tls import server_context
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import ClientSection, DeploySection, ServeFileServer
from sims.deploy.credentials import (
    ClientCredentials,
    KeyPair,
    ServerCredentials,
    newest_pair,
    server_credentials,
)
from sims.deploy.process_control import allow_connections

_INTERVAL: Final = 2.0  # seconds between two looks at the files
_OTHER_CONNECTIONS: Final = 256  # of strangers, and of those that read metrics
_LOCK_ATTEMPTS: Final = 20
_LOCK_INTERVAL: Final = 0.02  # seconds
_WAIT_INTERVAL: Final = 60.0  # seconds between two lines of the log while a server waits for a registry


class FileWatch:
    """Waits until one of `paths` has changed, or `nudge` is called."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._state()
        self._failed: object = None  # the state of the files in which they were found to be unusable
        self._nudged = trio.Event()

    def nudge(self) -> None:
        """Look at the files at once, even if none has changed."""
        self._nudged.set()

    async def follow(self, take: Callable[[], Awaitable[None]], log: EventLog) -> None:
        """Call `take` after every change. If it raises `SecaggError`, call it again a moment later: an
        operator may be writing several files. If it raises again, tell the log why."""
        while True:
            with trio.move_on_after(_INTERVAL):
                await self._nudged.wait()
            state = self._state()
            if state == self._seen and state != self._failed and not self._nudged.is_set():
                continue
            self._nudged, self._seen = trio.Event(), state
            try:
                await take()
                self._failed = None
            except SecaggError as error:
                if state == self._failed:
                    log.write("renewal refused", error=type(error).__name__, reason=str(error))
                self._failed = None if state == self._failed else state

    def _state(self) -> tuple[object, ...]:
        return tuple(map(_file_state, self._paths))


def _file_state(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


async def wait_for_registry(
    registry: Callable[[], Registry], log: EventLog, clock: Callable[[], float] = time.time
) -> None:
    """Wait while the registry has expired. The log says so, one line per interval."""
    told = -_WAIT_INTERVAL
    while True:
        try:
            registry().check_current(int(clock()))
        except ExpiredRegistry as error:
            if trio.current_time() >= told + _WAIT_INTERVAL:
                told = trio.current_time()
                log.write("waiting", reason=str(error))
            await trio.sleep(_INTERVAL / 4)
        else:
            return


# --- a server -----------------------------------------------------------------------------------------


class LiveServerCredentials:
    """The credentials of a server that are in force now. `section`, called `name` in the configuration, says
    where the files are. `follow` replaces the credentials when the files have changed."""

    def __init__(
        self, current: ServerCredentials, section: ServeFileServer | DeploySection, name: str
    ) -> None:
        self._section = section
        self._name = name
        self.current = current
        self.on_new_key: Callable[[ServerCredentials], None] = lambda _new: None
        self.watch = FileWatch(_server_files(section))

    @property
    def identity(self) -> Identity:
        return self.current.identity

    @property
    def registry(self) -> Registry:
        return self.current.registry

    @property
    def clients(self) -> Mapping[int, bytes]:
        return self.current.clients

    async def follow(self, server: Server, log: EventLog) -> None:
        """Tell the clients of `server` what is in force, and take up what is new."""
        for notice in _notices(self.current):
            server.post(notice)

        async def take() -> None:
            new = await trio.to_thread.run_sync(self._load)
            if new != self.current:
                context = await trio.to_thread.run_sync(tls_context, new)  # slow if there are many clients
                self._take_up(new, context, server, log)

        await self.watch.follow(take, log)

    def _load(self) -> ServerCredentials:
        problems = Problems(self._section.registry)
        new = server_credentials(self._section, problems, now=int(time.time()), name=self._name)
        problems.check()
        assert new is not None
        _check_not_older(new.registry, self.registry)
        if new.identity.public != self.identity.public:
            self._check_own_key(new)
        return new

    def _check_own_key(self, new: ServerCredentials) -> None:
        old, key = self.identity.public, new.identity.public
        try:
            chain_of(new.hand_overs, SERVER, old=old, new=key, authority=new.authority)
        except WrongHandOver as error:
            raise ConfigError(f"{self._section.key} has another key, but {error.why}") from None
        self.on_new_key(new)

    def _take_up(
        self, new: ServerCredentials, context: ssl.SSLContext, server: Server, log: EventLog
    ) -> None:
        old, self.current = self.current, new
        server.renew(members=new.registry.members, context=context, notices=_notices(new))
        try:
            allow_connections(len(new.registry.members) + _OTHER_CONNECTIONS)
        except ConfigError as error:
            log.write("caution", reason=str(error))
        log.write(
            "renewed",
            registry=new.registry.version,
            members=len(new.registry.members),
            new_key=new.identity.public != old.identity.public,
            new_certificate=new.certificate != old.certificate,
        )


def tls_context(own: ServerCredentials) -> ssl.SSLContext:
    """Return the TLS context of a server. It also serves clients that still pin its previous certificate."""
    previous = own.previous
    earlier = [] if previous is None else [(previous.identity, previous.certificate)]
    return server_context(own.identity, own.certificate, list(own.clients.values()), previous=earlier)


def _server_files(section: ServeFileServer | DeploySection) -> Iterator[Path]:
    yield from (section.registry, section.key, section.certificate)
    yield from (old_path(section.key), old_path(section.certificate))
    yield section.hand_over or hand_over_path(section.key)
    yield bundle_path(section.registry)


def _check_not_older(new: Registry, old: Registry) -> None:
    """Raise `ConfigError` if the file has an older registry, or another one of the same version."""
    if new.version < old.version:
        raise ConfigError(f"registry {new.version} is older than {old.version}, which is in force")
    if new.version == old.version and new.digest != old.digest:
        raise ConfigError(f"registry {new.version} is not the one of that version which is in force")


def _notices(own: ServerCredentials) -> list[Notice]:
    """Return what clients are told: the registry, and the certificate if it has taken another's place."""
    told = [Notice(Topic.REGISTRY, own.signed)]
    if own.previous is not None:
        statement = _statement(own.previous, own)
        if statement is not None or own.previous.identity.public == own.identity.public:
            told.append(certificate_notice(own.certificate, statement))
    return told


def _statement(previous: KeyPair, own: ServerCredentials) -> HandOver | None:
    """Return the statement, signed by the previous key, that hands it over to the new one; None without."""
    wanted = previous.identity.public, own.identity.public
    found = [each for each in own.hand_overs if (each.old, each.new) == wanted]
    try:
        return chain_of(found, SERVER, old=wanted[0], new=wanted[1], authority=None)[0] if found else None
    except WrongHandOver:
        return None


# --- a client -----------------------------------------------------------------------------------------


class ClientFiles:
    """The files of a client's keys: it offers what is new in them to a running client, and stores what the
    client has adopted, so that it has it after a restart."""

    def __init__(
        self, section: ClientSection, credentials: ClientCredentials, ledger: ClientLedger, log: EventLog
    ) -> None:
        self._section = section
        self._credentials = credentials
        self._ledger = ledger
        self._log = log
        self._server = credentials.server  # as last read from its file, or written to it
        self._pair = KeyPair(credentials.identity, credentials.certificate)
        self._handed_over = False  # whether a statement is new, of which the client has not heard
        self.watch = FileWatch(self._files())

    def _files(self) -> Iterator[Path]:
        section = self._section
        yield from (section.key, section.certificate, section.registry, section.server_certificate)
        yield self._hand_over

    @property
    def _hand_over(self) -> Path:
        return self._section.hand_over or hand_over_path(self._section.key)

    async def follow(self, client: Client) -> None:
        """Offer `client` the other key that it may have already, and all changes of its files."""
        if (other := self._credentials.other) is not None:
            await client.offer_key(other.identity, other.certificate)
        await self.watch.follow(lambda: self._take(client), self._log)

    async def _take(self, client: Client) -> None:
        section, now = self._section, int(time.time())
        self._handed_over |= self._ledger.offer(read_hand_overs(self._hand_over, section.member))
        await client.offer_registry(REGISTRY.read(section.registry))
        server = read_certificate(section.server_certificate)
        if server != self._server:
            client.pin_server(server)
            self._server = server
            self._log.write("server certificate", file=str(section.server_certificate))
        pair = newest_pair(section, now=now)
        if pair != self._pair or self._handed_over:
            await client.offer_key(pair.identity, pair.certificate)
            self._handed_over = False
        if pair != self._pair:
            self._log.write("new certificate", new_key=pair.identity.public != self._pair.identity.public)
            self._pair = pair

    # --- what the client has adopted ---

    def store(self, event: ClientNetworkEvent) -> None:
        """Store a registry or a certificate of the server that the client has adopted. If this is impossible,
        the log says so: the client goes on, but needs the file before it can be started again."""
        match event:
            case RegistryAdopted():
                path = self._section.registry
                store = partial(self._store_registry, event.registry, event.data)
            case ServerCertificateAdopted():
                path = self._section.server_certificate
                store = partial(self._store_certificate, event)
            case _:
                return
        try:
            store()
        except (SecaggError, OSError) as error:
            reason = f"{path} has to be replaced by the server's before this client is started again: {error}"
            self._log.write("caution", reason=reason)
        if isinstance(event, RegistryAdopted) and event.listing is KeyListing.NEXT:
            self._check_handed_over(event.registry.members[self._section.member])

    def _check_handed_over(self, key: bytes) -> None:
        """Hand the ledger over to the new `key`. If this is impossible, the log says so: the client takes
        part in no session until the statement is in its file."""
        try:
            self._ledger.hand_over(self._section.member, key)
        except SecaggError as error:
            self._log.write("caution", reason=f"{self._hand_over} lacks a statement: {error}")

    def _store_registry(self, registry: Registry, data: bytes) -> None:
        path = self._section.registry
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock_soon(handle, path.parent)  # secagg enrol does so, too: no newer registry is overwritten
            if self._stored_version(path) < registry.version:
                REGISTRY.replace(path, data, mode=PUBLIC)
        finally:
            os.close(handle)

    def _stored_version(self, path: Path) -> int:
        try:
            return verify_registry(REGISTRY.read(path), authority=self._credentials.authority).version
        except SecaggError:
            return -1

    def _store_certificate(self, event: ServerCertificateAdopted) -> None:
        path = self._section.server_certificate
        if read_certificate(path) != event.certificate:
            CERTIFICATE.replace(old_path(path), event.previous, mode=PUBLIC)
            CERTIFICATE.replace(path, event.certificate, mode=PUBLIC)
        self._server = event.certificate


def _lock_soon(handle: int, directory: Path) -> None:
    """Lock an open directory. Raise `ConfigError` if another process holds the lock for longer than others
    need to store a file: the event loop waits meanwhile."""
    for _ in range(_LOCK_ATTEMPTS):
        if try_lock_file(handle):
            return
        time.sleep(_LOCK_INTERVAL)
    raise ConfigError(f"another process holds the lock of {directory}")

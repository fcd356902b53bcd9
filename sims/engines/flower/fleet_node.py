"""A Flower node that is our own process: it carries letters between a SuperLink and a client."""

from __future__ import annotations

import math
import ssl
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from secagg.errors import MalformedMessage
from secagg.net.event_log import EventLog
from secagg.net.handshake import backoff
from secagg.net.settings import Address
from secagg.net.tunnel_dialer import TunnelDialer
from sims.config_problems import ConfigError
from sims.engines.flower.fleet_api import HEARTBEAT, FleetApi, FleetError, FleetMessage

_BUSY: Final = 0.1  # seconds between two looks for a message, while there are some
_IDLE: Final = 0.5
_AWAKE: Final = 10.0  # seconds without a message after which a node is idle
_MAX_ANSWERS: Final = 8  # messages that are answered at a time
_REFUSED: Final = (401, 403)  # HTTP: the SuperLink does not accept the signature of this node
# The answer to a node whose key it does not know, and to one of which an earlier process counts as online.
_NOT_ACTIVATED: Final = (412,)
_EARLY: Final = 0.7  # heartbeats are sent before they are due
_HANGS: Final = 4.0  # seconds without a response, after which a heartbeat is sent again
_STILL_ONLINE: Final = 75.0  # seconds, at most, that a killed process counts as online
_MOST_DOUBLINGS: Final = 4  # of the time between two attempts
_LAST: Final = 5.0  # seconds for calls that go on when the task is cancelled
# Seconds without a letter after which a run is over, or its server is gone. A server leaves a letter with
# every node, and a node replies within 20 seconds.
_QUIET: Final = 45.0
_OTHERS: Final = 0o077
_MOST_WAITING: Final = 4  # letters of other runs that wait until then


class FleetNode:
    """Takes the letters that come from a SuperLink to `dialer`, those of one run at a time. Implements
    `NodeEngine`."""

    def __init__(self, api: FleetApi, log: EventLog, *, address: Address) -> None:
        self.dialer = TunnelDialer()
        self._api = api
        self._log = log
        self._address = address
        self._answers = trio.Semaphore(_MAX_ANSWERS)
        self._run: int | None = None  # the run whose letters are taken
        self._heard = -math.inf  # when its last letter came
        self._waiting = 0  # letters of other runs
        self._named: int | None = None  # the last other run that was written to the log
        self._sends: set[trio.CancelScope] = set()

    async def run(self) -> None:
        """Be a node of the SuperLink until the task is cancelled. Raise `ConfigError` if the SuperLink does
        not accept the key of this node."""
        await self._activate()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat)
                nursery.start_soon(self._receive, nursery)
                nursery.start_soon(self._limit_sends)
        finally:
            with trio.move_on_after(_LAST, shield=True):
                await trio.to_thread.run_sync(self._leave, abandon_on_cancel=True)

    async def _activate(self) -> None:
        attempt, refused_since = 0, math.inf
        while True:
            try:
                node_id = await trio.to_thread.run_sync(self._api.activate, abandon_on_cancel=True)
            except FleetError as error:
                # Only refusals in a row say something about the key: an earlier process of this node may have
                # been alive shortly before the SuperLink could be reached.
                now = trio.current_time()
                refused_since = min(refused_since, now) if error.status in _NOT_ACTIVATED else math.inf
                long = now > refused_since + _STILL_ONLINE
                self._check_refused(error, *(_NOT_ACTIVATED if long else ()))
                self._log.write("unreachable", reason=f"{self._address}: {error}{_hint(error)}")
                attempt = min(attempt + 1, _MOST_DOUBLINGS)
                await trio.sleep(backoff(attempt))
            else:
                self._log.write("flower node", superlink=str(self._address), node=node_id)
                return

    def _check_refused(self, error: FleetError, *more: int) -> None:
        if error.status in (*_REFUSED, *more):
            raise ConfigError(
                f"the SuperLink at {self._address} refuses the key of this node ({error}): register it with "
                "flwr supernode register, or name the right key with --auth-supernode-private-key"
            )

    def _leave(self) -> None:
        with suppress(FleetError):  # it notices by itself that this node is gone
            self._api.deactivate()
        self._api.close()

    async def _beat(self) -> None:
        """Send heartbeats. Activate the node again only if the SuperLink does not know it: it refuses that to
        a node that counts as online, and a heartbeat is enough for one that counts as offline."""
        while True:
            await trio.sleep(HEARTBEAT * _EARLY)
            if not await self._send_heartbeat():
                self._log.write("unreachable", reason=f"{self._address}: this node is not known any more")
                await self._activate()

    async def _send_heartbeat(self) -> bool:
        """Send a heartbeat, again and again if it fails. Return whether the SuperLink knows this node."""
        failures = 0
        while True:
            reason = f"no response to a heartbeat within {_HANGS:g} seconds"
            try:
                with trio.move_on_after(_HANGS):
                    return await trio.to_thread.run_sync(self._api.heartbeat, abandon_on_cancel=True)
            except FleetError as error:
                self._check_refused(error)
                reason = str(error)
            self._log.write("unreachable", reason=f"{self._address}: {reason}")
            failures = min(failures + 1, _MOST_DOUBLINGS)
            await trio.sleep(backoff(failures))

    async def _receive(self, nursery: trio.Nursery) -> None:
        last, failures = trio.current_time(), 0
        while True:
            try:
                async with self._answers:
                    message = await trio.to_thread.run_sync(self._api.pull, abandon_on_cancel=True)
            except FleetError as error:
                self._check_refused(error)
                self._log.write("unreachable", reason=f"{self._address}: {error}")
                failures += 1
                await trio.sleep(backoff(failures))
                continue
            failures = 0
            if message is not None:
                last = trio.current_time()
                if message.letter is not None:
                    nursery.start_soon(self._answer, message, message.letter)
            else:
                await trio.sleep(_BUSY if trio.current_time() < last + _AWAKE else _IDLE)

    async def _answer(self, message: FleetMessage, letter: bytes) -> None:
        if not await self._has_turn(message.run):
            return
        async with self._answers:
            try:
                await self._send(message, await self.dialer.answer(letter))
            except (FleetError, MalformedMessage) as error:
                self._log.write("letter lost", reason=str(error))
                self.dialer.lose_streams()

    async def _has_turn(self, run: int) -> bool:
        """Wait until the letters of `run` may be taken. Return False if too many letters wait."""
        if self._is_other(run):
            if self._named != run:
                reason = f"run {run} has to wait: this node takes part in run {self._run}"
                self._log.write("caution", reason=reason)
                self._named = run
            if self._waiting == _MOST_WAITING:
                return False
            self._waiting += 1
            try:
                await self._wait_for_end(run)
            finally:
                self._waiting -= 1
        self._run, self._heard = run, trio.current_time()
        return True

    async def _wait_for_end(self, run: int) -> None:
        """Wait until the run whose letters are taken is over, or another letter of `run` was taken."""
        while self._is_other(run):  # noqa: ASYNC110  (each letter that comes meanwhile puts it off)
            await trio.sleep_until(self._heard + _QUIET)

    def _is_other(self, run: int) -> bool:
        """Whether this node takes part in another run, whose last letter is not long ago."""
        return run != self._run and trio.current_time() < self._heard + _QUIET

    async def _send(self, message: FleetMessage, reply: bytes) -> None:
        """Send a reply, also when the task is cancelled."""
        with trio.CancelScope(shield=True) as scope:
            self._sends.add(scope)
            try:
                await trio.to_thread.run_sync(self._api.reply, message, reply, abandon_on_cancel=True)
            finally:
                self._sends.discard(scope)

    async def _limit_sends(self) -> None:
        """When the task is cancelled, give replies that are being sent a last moment."""
        try:
            await trio.sleep_forever()
        finally:
            for scope in self._sends:
                scope.deadline = trio.current_time() + _LAST


def _hint(error: FleetError) -> str:
    if error.status not in _NOT_ACTIVATED:
        return ""
    return ": the key of this node is not registered, or an earlier process of it still counts as online"


@dataclass(frozen=True)
class NodeSettings:
    """How a node reaches its SuperLink, with the contents of the files that were named."""

    address: Address
    insecure: bool
    roots: bytes | None
    key: EllipticCurvePrivateKey | None
    cautions: tuple[str, ...] = ()


def read_node_settings(
    address: Address, *, insecure: bool, root_certificates: Path | None, private_key: Path | None
) -> NodeSettings:
    """Return the settings of a node of the SuperLink at `address`. Raise `ConfigError` if files cannot be
    used, or if their combination makes no sense."""
    if insecure and (root_certificates or private_key):
        raise ConfigError("--insecure: remove it, or else --root-certificates and the node's key")
    if insecure and not address.is_loopback:
        raise ConfigError(f"--insecure: {address} is not on this machine; name --root-certificates")
    roots = None if root_certificates is None else _roots(root_certificates)
    key = None if private_key is None else _key(private_key)
    cautions = [] if private_key is None else list(_cautions(private_key))
    return NodeSettings(address, insecure, roots, key, tuple(cautions))


def open_node(settings: NodeSettings, log: EventLog) -> FleetNode:
    """Return a node, which is not online yet."""
    for caution in settings.cautions:
        log.write("caution", reason=caution)
    api = FleetApi(
        str(settings.address),
        insecure=settings.insecure,
        root_certificates=settings.roots,
        key=settings.key,
    )
    return FleetNode(api, log, address=settings.address)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _roots(path: Path) -> bytes:
    content = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ValueError, OSError):  # an `SSLError` is an `OSError`
        raise ConfigError(f"{path}: has no certificates in PEM format") from None
    return content


def _key(path: Path) -> EllipticCurvePrivateKey:
    content = _read(path)
    for load in (load_pem_private_key, load_ssh_private_key):
        try:
            key = load(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        if isinstance(key, EllipticCurvePrivateKey):
            return key
    raise ConfigError(f"{path}: is no private key of an elliptic curve without a password")


def _cautions(private_key: Path) -> Iterator[str]:
    mode = stat.S_IMODE(private_key.stat().st_mode)
    if mode & _OTHERS:
        yield f"{private_key}: other users can use this key (mode {mode:04o}): chmod 600 {private_key}"

"""A Flower node that is our own process: it carries letters between a SuperLink and a client."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
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
_STILL_ONLINE: Final = 75.0  # seconds, at most, that a killed process counts as online
_MOST_DOUBLINGS: Final = 4  # of the time between two attempts


class FleetNode:
    """Takes the letters that come from a SuperLink to `dialer`. Implements `NodeEngine`."""

    def __init__(self, api: FleetApi, log: EventLog, *, address: Address) -> None:
        self.dialer = TunnelDialer()
        self._api = api
        self._log = log
        self._address = address
        self._answers = trio.Semaphore(_MAX_ANSWERS)

    async def run(self) -> None:
        """Be a node of the SuperLink until the task is cancelled. Raise `ConfigError` if the SuperLink does
        not accept the key of this node."""
        await self._activate()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat)
                nursery.start_soon(self._receive, nursery)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._leave)

    async def _activate(self) -> None:
        attempt, first = 0, trio.current_time()
        while True:
            try:
                node_id = await trio.to_thread.run_sync(self._api.activate, abandon_on_cancel=True)
            except FleetError as error:
                long = trio.current_time() > first + _STILL_ONLINE
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
        while True:
            await trio.sleep(HEARTBEAT * _EARLY)
            try:
                await trio.to_thread.run_sync(self._api.heartbeat, abandon_on_cancel=True)
            except FleetError as error:
                self._check_refused(error)
                self._log.write("unreachable", reason=f"{self._address}: {error}")
                await self._activate()

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
        async with self._answers:
            try:
                reply = await self.dialer.answer(letter)
                await trio.to_thread.run_sync(self._api.reply, message, reply)
            except (FleetError, MalformedMessage) as error:
                self._log.write("letter lost", reason=str(error))
                self.dialer.lose_streams()


def _hint(error: FleetError) -> str:
    if error.status not in _NOT_ACTIVATED:
        return ""
    return ": the key of this node is not registered, or an earlier process of it still counts as online"


def open_node(
    address: Address,
    log: EventLog,
    *,
    insecure: bool,
    root_certificates: Path | None,
    private_key: Path | None,
) -> FleetNode:
    """Return a node of the SuperLink at `address`. Raise `ConfigError` if files cannot be used, or if their
    combination makes no sense."""
    if insecure and (root_certificates or private_key):
        raise ConfigError("--insecure: remove it, or else --root-certificates and the node's key")
    if insecure and not address.is_loopback:
        raise ConfigError(f"--insecure: {address} is not on this machine; name --root-certificates")
    roots = None if root_certificates is None else _read(root_certificates)
    key = None if private_key is None else _key(private_key)
    try:
        api = FleetApi(str(address), insecure=insecure, root_certificates=roots, key=key)
    except (ValueError, OSError):
        raise ConfigError(f"{root_certificates}: has no certificates in PEM format") from None
    return FleetNode(api, log, address=address)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _key(path: Path) -> EllipticCurvePrivateKey:
    content = _read(path)
    for load in (load_pem_private_key, load_ssh_private_key):
        try:
            key = load(content, None)
        except (ValueError, TypeError):
            continue
        if isinstance(key, EllipticCurvePrivateKey):
            return key
    raise ConfigError(f"{path}: is no private key of an elliptic curve without a password")

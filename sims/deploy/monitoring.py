"""Connects a server with what is served to its operator over HTTP: `/metrics` for Prometheus and `/health`.

Without the extra `metrics`, or if the default address is taken, the server works as well, and its log has a
caution. If the operator has chosen an address, both are errors of the configuration."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from secagg.errors import LedgerError
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog
from secagg.net.events import ServerNetworkEvent
from secagg.net.settings import Address
from sims.config_problems import ConfigError, Problems
from sims.deploy.config import MetricsSection
from sims.deploy.health import Health, HealthProblem
from sims.deploy.http_endpoint import Reply, Route, open_endpoint
from sims.deploy.listen_errors import cannot_listen

if TYPE_CHECKING:
    from sims.deploy.server_metrics import ServerMetrics

KEY: Final = "metrics.listen"
JSON: Final = "application/json"
_BY_NAME: Final = "localhost"
_INSTALL: Final = "pip install 'secagg[metrics]'"


def is_installed() -> bool:
    """Return whether the extra `metrics` is installed."""
    return find_spec("prometheus_client") is not None


def check_metrics(section: MetricsSection, problems: Problems, key: str = KEY) -> None:
    """Add a problem if the operator has chosen an address, but the extra `metrics` is not installed. `key` is
    the setting of the address."""
    if section.is_explicit and section.listen is not None and not is_installed():
        problems.add(key, f"needs the extra 'metrics': {_INSTALL}, or set it to \"off\"")


def check_addresses(listen: Address, section: MetricsSection, problems: Problems, key: str = KEY) -> None:
    """Add a problem if figures are to be served on the port `listen`, which is for the clients. `key` is the
    setting of their address."""
    own = section.listen
    if own is not None and is_installed() and _overlap(own, listen):
        problems.add(
            key, f'{own} is taken by {listen}, the address for clients: choose another port, or "off"'
        )


def _overlap(one: Address, other: Address) -> bool:
    """Return whether a machine cannot listen at both addresses. The system chooses port 0 anew each time."""
    if one.port == 0 or one.port != other.port:
        return False
    named = _BY_NAME in (one.host, other.host) and one.is_loopback and other.is_loopback
    return (
        one.host == other.host or named or _includes(one.host, other.host) or _includes(other.host, one.host)
    )


def _includes(every: str, host: str) -> bool:
    """Return whether `every` stands for all addresses of a machine, and `host` is one of them, or a name."""
    try:
        wide = ipaddress.ip_address(every)
    except ValueError:
        return False  # a name
    try:
        return wide.is_unspecified and ipaddress.ip_address(host).version == wide.version
    except ValueError:
        return wide.is_unspecified


def metrics_cautions(section: MetricsSection, key: str = KEY) -> list[str]:
    """Return warnings if there will be no monitoring, or if others than this machine can read it. `key` is
    the setting of the address."""
    if section.listen is None:
        return []
    if not is_installed():
        return [f"metrics and health are not served without the extra 'metrics': {_INSTALL}; {_off(key)}"]
    if not section.listen.is_loopback:
        return [
            f"{key} is not a loopback address: whoever can connect to it can read how many clients there are "
            "and which sums fail; limit this by a firewall"
        ]
    return []


def _off(key: str) -> str:
    return f'set {key} = "off" if you need neither'


class Monitoring:
    """The figures and the health of a server. It is an `on_event` callback, which passes events on to the
    log and counts them. `serving` answers requests. `where` is the configuration, which errors name, and
    `key` is its setting of the address."""

    def __init__(
        self,
        where: Path | str,
        section: MetricsSection,
        *,
        log: EventLog,
        health: Health,
        metrics: ServerMetrics | None,
        key: str = KEY,
    ) -> None:
        self._where = where
        self._key = key
        self._section = section
        self._log = log
        self._metrics = metrics
        self.health = health
        self.address: Address | None = None
        self.cautions: list[str] = []

    def __call__(self, event: ServerNetworkEvent) -> None:
        self._log(event)
        if self._metrics is not None:
            self._metrics(event)

    def note_not_asked(self, reason: Enum) -> None:
        if self._metrics is not None:
            self._metrics.note_not_asked(reason)

    def note_not_held(self, error: Exception) -> None:
        """Count a round of training in which no client could be asked, because of `error`."""
        if self._metrics is not None:
            self._metrics.note_not_held(error)

    def show_rounds(self, planned: int, done: Callable[[], int], failed: Callable[[], int]) -> None:
        """Show how many rounds of training there are, how many are over, and how many of these failed."""
        if self._metrics is not None:
            self._metrics.show_rounds(planned, done, failed)

    def count_connected(self, connected: Callable[[], int]) -> None:
        if self._metrics is not None:
            self._metrics.count_connected(connected)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer requests for as long as the block lasts, and keep the address in `address`. If this is not
        possible, add to `cautions`, or raise `ConfigError` if the operator has chosen the address."""
        async with AsyncExitStack() as stack:
            if self._metrics is not None and self._section.listen is not None:
                endpoint = open_endpoint(self._section.listen, self._routes(self._metrics))
                try:
                    self.address = await stack.enter_async_context(endpoint)
                except (OSError, UnicodeError) as error:
                    self._give_up(cannot_listen(self._section.listen, error))
            yield

    def _give_up(self, why: str) -> None:
        if self._section.is_explicit:
            raise ConfigError(f"{self._where}: {self._key}: {why}") from None
        self.cautions.append(f"metrics and health are not served: {why}; {_off(self._key)}")

    def _routes(self, metrics: ServerMetrics) -> dict[str, Route]:
        from sims.deploy.server_metrics import TEXT_FORMAT

        async def figures() -> Reply:
            return Reply(HTTPStatus.OK, metrics.text(), TEXT_FORMAT)

        async def health() -> Reply:
            return health_reply(await self.health.faults())

        return {"/metrics": figures, "/health": health}


def health_reply(faults: tuple[HealthProblem, ...]) -> Reply:
    """Return status 200, or 503 with the reasons: what is bad, and the name of an error class. The log has
    the sentences, because they name files."""
    reasons = [{"about": fault.subject.value, "error": fault.error} for fault in faults]
    body = {"status": "bad", "reasons": reasons} if faults else {"status": "good"}
    status = HTTPStatus.SERVICE_UNAVAILABLE if faults else HTTPStatus.OK
    return Reply(status, json.dumps(body).encode() + b"\n", JSON)


def open_metrics(
    section: MetricsSection,
    *,
    registry: Callable[[], Registry],
    ledger: ServerLedger,
    on_ledger_error: Callable[[LedgerError], None],
) -> ServerMetrics | None:
    """Return the figures of a server, or None if they are off or the extra `metrics` is not installed."""
    if section.listen is None or not is_installed():
        return None
    from sims.deploy.server_metrics import ServerMetrics

    return ServerMetrics(registry=registry, ledger=ledger, on_ledger_error=on_ledger_error)

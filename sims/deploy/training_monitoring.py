"""Figures and health of a training server, which its operator reads over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from secagg.errors import LedgerError
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.deploy.config import DeploySection
from sims.deploy.connected_clients import LOOK
from sims.deploy.disk_room import check_room
from sims.deploy.health import Health, Subject
from sims.deploy.monitoring import Monitoring, metrics_cautions, open_metrics
from sims.records.run_file_names import LEDGER

METRICS_KEY: Final = "metrics.listen"
WHERE: Final = "deploy"
_AGAIN: Final = 1.0  # seconds between two tries to write to a disk that is full


def training_monitoring(
    section: DeploySection, registry: Callable[[], Registry], ledger: ServerLedger, log: EventLog
) -> Monitoring:
    """Return what shows the operator of a training server its figures and its health. `registry` returns the
    registry that is in force."""
    health = Health(
        registry=registry,
        ledger=ledger,
        ledger_path=section.run / LEDGER,
        check_output=partial(check_room, section.run),
        output=Subject.RUN,
        log=log,
    )
    metrics = open_metrics(
        section.metrics, registry=registry, ledger=ledger, on_ledger_error=health.note_ledger_error
    )
    return Monitoring(WHERE, section.metrics, log=log, health=health, metrics=metrics, key=METRICS_KEY)


def training_cautions(monitoring: Monitoring, section: DeploySection) -> list[str]:
    """Return warnings if figures and health are not served, or to others than this machine."""
    return [*metrics_cautions(section.metrics, f"{WHERE}.{METRICS_KEY}"), *monitoring.cautions]


def wait_for_room(
    section: DeploySection, ledger: ServerLedger | None, log: EventLog, sleep: Callable[[float], None]
) -> None:
    """Wait until the run directory can be written to. The log says so, one line per interval."""
    said = -LOOK
    while ledger is not None and (why := _lack_of_room(section, ledger)):
        if time.monotonic() - said >= LOOK:
            said = time.monotonic()
            log.write("waiting", reason=why)
        sleep(_AGAIN)


def _lack_of_room(section: DeploySection, ledger: ServerLedger) -> str | None:
    """Return why nothing can be written to the run directory now; None if something can."""
    try:
        ledger.check_writable()
        check_room(section.run)
    except (ConfigError, LedgerError) as error:
        return str(error)
    return None

"""The ServerApp of a training run on Flower. `flwr run` starts it on the host of the SuperLink.

    [tool.flwr.app.components]
    serverapp = "sims.engines.flower.server_app:app"

    [tool.flwr.app.config]
    scenario = "/srv/secagg/train.toml"

The scenario, with its table [deploy], and the files that it names, keys among them, are on that host. The app
that `flwr run` submits has neither keys nor data, and cannot change what clients agree to.

An app is code, though, which runs under an account that can read these keys. The right to `flwr run` is the
right to be the training server. If SECAGG_SCENARIOS, in the environment of the SuperLink, names a directory,
this app serves only the scenarios in it, and `scenario` is the plain name of one. Other apps are not bound.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.deploy.training import train_as_server
from sims.engines.flower.grid_carrier import GONE, GridCarrier

app = ServerApp()
SCENARIO: Final = "scenario"
SCENARIOS_VARIABLE: Final = "SECAGG_SCENARIOS"
PATIENCE_VARIABLE: Final = "SECAGG_SUPERLINK_PATIENCE"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_logger: Final = logging.getLogger("secagg.net")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model of the scenario that the run's configuration names, to its last round. Raise
    `SecaggError` if an operator has to repair something, or if the SuperLink is gone: the run directory is
    closed then, and Flower ends the process within seconds, although its threads still try to reach it."""
    scenario = scenario_path(context.run_config.get(SCENARIO))
    carrier = GridCarrier(grid, EventLog(), gone=superlink_patience())
    with train_as_server(scenario, carrier=carrier) as run:
        for report in run:
            _logger.info("round %d: %s clients", report.number, report.clients)


def scenario_path(named: object, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the scenario that a run's configuration names. Raise `ConfigError` if it has to be
    in the operator's directory, and its name is not plain or there is no such file."""
    directory = environment.get(SCENARIOS_VARIABLE)
    if directory is None:
        if not isinstance(named, str) or not Path(named).is_absolute():
            raise ConfigError(
                f"{SCENARIO}: name the scenario's file on the SuperLink's host, as an absolute path"
            )
        return Path(named)
    if not isinstance(named, str) or not _PLAIN_NAME.fullmatch(named):
        raise ConfigError(
            f"{SCENARIO}: name a scenario of the SuperLink's host, without its path and .toml: a plain name "
            "of letters, digits, - and _"
        )
    path = Path(directory) / f"{named}.toml"
    if not Path(directory).is_absolute() or not path.is_file():
        raise ConfigError(
            f"{SCENARIO}: the directory that {SCENARIOS_VARIABLE} names has no {named}.toml: put the "
            "scenario there, or correct the name; the directory must be an absolute path"
        )
    return path


def superlink_patience(environment: Mapping[str, str] = os.environ) -> float:
    """Return after how many seconds a SuperLink that does not answer is given up. Raise `ConfigError` if the
    environment says something else than a number of seconds."""
    named = environment.get(PATIENCE_VARIABLE)
    try:
        seconds = GONE if named is None else float(named)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{PATIENCE_VARIABLE}: must be a number of seconds greater than 0")
    return seconds

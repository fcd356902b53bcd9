"""The ServerApp of a training run on Flower. `flwr run` starts it on the host of the SuperLink.

    [tool.flwr.app.components]
    serverapp = "sims.engines.flower.server_app:app"

    [tool.flwr.app.config]
    scenario = "/srv/secagg/train.toml"

The scenario, with its table [deploy], and the files that it names, keys among them, are on that host. The app
that `flwr run` submits has neither keys nor data, and cannot change what clients agree to.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError
from sims.deploy.training import train_as_server
from sims.engines.flower.grid_carrier import GridCarrier

app = ServerApp()
SCENARIO: Final = "scenario"
_logger: Final = logging.getLogger("secagg.net")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model of the scenario that the run's configuration names, to its last round. Raise
    `SecaggError` if an operator has to repair something."""
    named = context.run_config.get(SCENARIO)
    if not isinstance(named, str) or not Path(named).is_absolute():
        raise ConfigError(
            f"{SCENARIO}: name the scenario's file on the SuperLink's host, as an absolute path"
        )
    carrier = GridCarrier(grid, EventLog())
    with train_as_server(named, carrier=carrier) as run:
        for report in run:
            _logger.info("round %d: %s clients", report.number, report.clients)

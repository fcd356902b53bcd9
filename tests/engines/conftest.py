"""Ray for the tests that use it, started once, and the figures that tests have measured, shown at the end."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def ray() -> Iterator[None]:
    """A Ray on this machine, to which the process is connected."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    from sims.runtime.ray.cluster import connect, disconnect

    cluster = connect("local")
    yield
    disconnect(cluster)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have given to `record_property`."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, figure in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{report.nodeid}: {name}: {figure}")

"""Ray for the tests that use it, started once: that takes seconds."""

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

"""A browser driver that dies while it starts is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sims.browser import started

_DRIVER = """#!/bin/sh
echo attempt >> {log}
if [ "$(wc -l < {log})" -le {deaths} ]; then kill -TRAP $$; fi
echo "ChromeDriver was started successfully on port 4711."
exec sleep 60
"""


def _driver(folder: Path, *, deaths: int) -> Path:
    path = folder / "driver"
    path.write_text(_DRIVER.format(log=folder / "log", deaths=deaths))
    path.chmod(0o755)
    return path


def test_a_driver_that_dies_at_first_is_started_again(tmp_path: Path) -> None:
    process, port = started(str(_driver(tmp_path, deaths=1)))
    process.kill()
    process.communicate()

    assert port == 4711
    assert (tmp_path / "log").read_text().count("attempt") == 2


def test_a_driver_that_always_dies_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="3 attempts"):
        started(str(_driver(tmp_path, deaths=9)))

    assert (tmp_path / "log").read_text().count("attempt") == 3

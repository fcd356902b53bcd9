"""The machine and the software that a benchmark ran with. Nothing here names the machine."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.backends.openssl import backend

PACKAGES: Final = ("secagg", "numpy", "cryptography", "msgpack")
_CPUINFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """`load` is how many processes wanted a core when the benchmarks began, over the last minute."""

    processor: str
    cores: int
    load: float
    system: str
    python: str
    packages: tuple[str, ...]  # with their versions
    openssl: str

    @classmethod
    def here(cls) -> Self:
        return cls(
            processor=_processor(),
            cores=os.cpu_count() or 1,
            load=os.getloadavg()[0],
            system=platform.system(),
            python=f"{platform.python_implementation()} {platform.python_version()}",
            packages=tuple(f"{name} {metadata.version(name)}" for name in PACKAGES),
            openssl=backend.openssl_version_text(),
        )


def _processor() -> str:
    """Return the model of the processor if the system reports it, or else the architecture."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()

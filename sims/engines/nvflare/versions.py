"""Which versions of NVFlare are known to work: parts of it are used that it does not document."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sims.config_problems import ConfigError

NVFLARE_VERSIONS: Final = ("2.9",)


def check_nvflare(installed: str | None = None) -> str:
    """Return the version of NVFlare, which is `installed`, or else that of this environment. Raise
    `ConfigError` if there is none, or if it is not known to work."""
    found = installed or _installed()
    if ".".join(found.split(".")[:2]) not in NVFLARE_VERSIONS:
        known = " and ".join(f"{each}.*" for each in NVFLARE_VERSIONS)
        raise ConfigError(
            f"NVFlare {found} is installed, and only {known} is known to work: install it with "
            "pip install 'secagg[nvflare]'"
        )
    return found


def _installed() -> str:
    try:
        return version("nvflare")
    except PackageNotFoundError:
        raise ConfigError("NVFlare is not installed: pip install 'secagg[nvflare]'") from None

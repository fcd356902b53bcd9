"""Which versions of Flower are known to work: the Fleet API is internal, and may change with any of them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sims.config_problems import ConfigError

FLOWER_VERSIONS: Final = ("1.41", "1.42")
_RELAY: Final = "or use a stock SuperNode with secagg join --relay, which needs only Flower's public API"


def check_flower(installed: str | None = None) -> str:
    """Return the version of Flower, which is `installed`, or else that of this environment. Raise
    `ConfigError` if there is none, or if its Fleet API is not known."""
    found = installed or _installed()
    if ".".join(found.split(".")[:2]) not in FLOWER_VERSIONS:
        known = " and ".join(f"{each}.*" for each in FLOWER_VERSIONS)
        raise ConfigError(
            f"Flower {found} is installed, and its Fleet API is known only of {known}: install one of these "
            f"(pip install 'secagg[flower]'), {_RELAY}"
        )
    return found


def _installed() -> str:
    try:
        return version("flwr")
    except PackageNotFoundError:
        raise ConfigError("Flower is not installed: pip install 'secagg[flower]'") from None

"""Which versions of the engines are known to work.

The Fleet API of Flower is internal, and parts of NVFlare are used that it does not document: any minor
version may change them. Versions before a release (`dev`, `a`, `b`, `rc`) are refused.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sims.config_problems import ConfigError

FLOWER_VERSIONS: Final = ("1.41", "1.42")
NVFLARE_VERSIONS: Final = ("2.9",)
_RELEASE: Final = re.compile(r"([0-9]+\.[0-9]+)(\.[0-9]+)*(\.post[0-9]+)?(\+[a-z0-9.]+)?")
_RELAY: Final = "or use a stock SuperNode with secagg join --relay, which needs only Flower's public API"


def check_flower(installed: str | None = None) -> str:
    """Return the version of Flower, which is `installed`, or else that of this environment. Raise
    `ConfigError` if there is none, or if its Fleet API is not known."""
    found = installed or _installed("Flower", "flwr", extra="flower")
    if not _is_known(found, FLOWER_VERSIONS):
        raise ConfigError(
            f"Flower {found} is installed, and its Fleet API is known only of releases "
            f"{_named(FLOWER_VERSIONS)}: install one of these (pip install 'secagg[flower]'), {_RELAY}"
        )
    return found


def check_nvflare(installed: str | None = None) -> str:
    """Return the version of NVFlare, which is `installed`, or else that of this environment. Raise
    `ConfigError` if there is none, or if it is not known to work."""
    found = installed or _installed("NVFlare", "nvflare", extra="nvflare")
    if not _is_known(found, NVFLARE_VERSIONS):
        raise ConfigError(
            f"NVFlare {found} is installed, and only releases {_named(NVFLARE_VERSIONS)} are known to work: "
            "install one with pip install 'secagg[nvflare]'"
        )
    return found


def _installed(engine: str, package: str, *, extra: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ConfigError(f"{engine} is not installed: pip install 'secagg[{extra}]'") from None


def _is_known(found: str, minor_versions: tuple[str, ...]) -> bool:
    """Return whether `found` is a release of `minor_versions`: what comes before one may have other code, and
    holes that the release has closed."""
    release = _RELEASE.fullmatch(found)
    return release is not None and release[1] in minor_versions


def _named(minor_versions: tuple[str, ...]) -> str:
    return " and ".join(f"{each}.*" for each in minor_versions)

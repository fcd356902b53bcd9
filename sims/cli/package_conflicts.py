"""Checks that the names `protocols`, `fl` and `sims` lead to the packages of this distribution. These names
are common. If another package with the same name is earlier on the path, it would be imported, with obscure
errors or none. This module looks up each package and reads its `__init__.py` without importing it.
`secagg.__main__` runs this file by its path, because the name `sims` might lead to another package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "secagg"
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocols", "fl", "sims")
# The line in the `__init__.py` of each of our packages that marks it as ours.
MARK = f'__distribution__ = "{DISTRIBUTION}"'


def complaint() -> str | None:
    """Return a line with a remedy for each package of secagg that is missing or shadowed; None if none is."""
    return "\n".join(map(_sentence, conflicts())) or None


def conflicts() -> Iterator[tuple[str, Path | None]]:
    """Yield (name, location) for each name in `PACKAGES` whose import would not give secagg's own package:
    `location` is that of the other package, or None if there is none."""
    for name in PACKAGES:
        location = _location(name)
        if location is None or location.parent != ROOT or not _is_marked(location / "__init__.py"):
            yield name, location


def _location(name: str) -> Path | None:
    """Return the directory or file that an import of `name` would load; None if there is none."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a specification has that name in this process
        return None
    if spec is None:
        return None
    locations = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return Path(locations[0]).resolve()


def _is_marked(path: Path) -> bool:
    try:
        return MARK in path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _sentence(found: tuple[str, Path | None]) -> str:
    name, location = found
    if location is None:
        return f"secagg: the package {name} is missing: install secagg again"
    owners = _owners(name)
    whose = f" (of {', '.join(owners)})" if owners else ""
    remedy = (
        f"uninstall {', '.join(owners)}, or use an environment of its own for secagg"
        if owners
        else "take it off PYTHONPATH, or start from another directory"
    )
    return f"secagg: {name} is {location}{whose}, and not the package of this distribution: {remedy}"


def _owners(name: str) -> list[str]:
    """Return other distributions that provide `name`. This is slow, so call it only on a conflict."""
    return sorted({each for each in metadata.packages_distributions().get(name, ()) if each != DISTRIBUTION})

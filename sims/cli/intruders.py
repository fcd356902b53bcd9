"""Whether the packages with common names are those of this distribution, and who is in their place if not.

`protocols`, `fl` and `sims` are names that others may have taken as well. Another package of that name
earlier on the path, or installed over ours, would fail somewhere deep inside, or worse, would not. Nothing of
ours is imported here: a place is looked up, and the first line of a file is read. `secagg.__main__` runs this
file before it trusts the name `sims`, so it stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "secagg"
ROOT = Path(__file__).resolve().parents[2]
# How our packages introduce themselves: the beginning of their __init__.py.
FIRST_WORDS = {
    "protocols": '"""Federated algorithms, each written as a sequence of sums.',
    "fl": '"""Local training: what one client computes on its own data between two sums.',
    "sims": '"""Simulations: whole runs with many clients and a server on one machine',
}


def complaint() -> str | None:
    """What is wrong, a line for each intruder, and what to do about it; None if all packages are ours."""
    return "\n".join(map(_sentence, intruders())) or None


def intruders() -> Iterator[tuple[str, Path | None]]:
    """Every name that is not ours, and where it leads to."""
    for name, words in FIRST_WORDS.items():
        place = _place(name)
        if place is None or place.parent != ROOT or not _begins(place / "__init__.py", words):
            yield name, place


def _place(name: str) -> Path | None:
    """The directory of a package, or the file of a module, that an import would find."""
    try:
        spec = find_spec(name)
    except ValueError:  # something without a specification took the name in this process
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return Path(places[0]).resolve()


def _begins(path: Path, words: str) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(len(words)) == words
    except (OSError, UnicodeDecodeError):
        return False


def _sentence(found: tuple[str, Path | None]) -> str:
    name, place = found
    if place is None:
        return f"secagg: the package {name} is missing: install secagg again"
    owners = _owners(name)
    whose = f" (of {', '.join(owners)})" if owners else ""
    remedy = (
        f"uninstall {', '.join(owners)}, or use an environment of its own for secagg"
        if owners
        else "take it off PYTHONPATH, or start from another directory"
    )
    return f"secagg: {name} is {place}{whose}, and not the package of this distribution: {remedy}"


def _owners(name: str) -> list[str]:
    """Other distributions that have installed that name. Slow, and only for when something is wrong."""
    return sorted({each for each in metadata.packages_distributions().get(name, ()) if each != DISTRIBUTION})

"""Tells by a digest of all modules whether nodes of a cluster have the same secagg as the main process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("fl", "protocols", "secagg", "sims")
DIFFERENT: Final = "the nodes have another secagg than this process: install the same"


@cache
def source_digest() -> str:
    """Return a digest of all modules of this package, as they were when it was first asked for."""
    return digest_of({name: folder for name in _PACKAGES if (folder := _folder(name)) is not None})


def digest_of(folders: Mapping[str, Path]) -> str:
    """Return a digest of the Python files in the folders of packages, by name."""
    found = hashlib.sha256()
    for name, folder in sorted(folders.items()):
        for path in sorted(folder.rglob("[!.]*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{name}/{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()


def _folder(name: str) -> Path | None:
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent

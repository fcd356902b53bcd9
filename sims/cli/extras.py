"""The optional dependencies that commands need."""

import sys
from importlib.util import find_spec

from sims.cli.errors import UserError

# The modules that each extra of pyproject.toml brings.
MODULES = {
    "deploy": ("pydantic",),
    "fl": ("torch",),
    "sims": ("dp_accounting", "matplotlib", "pydantic", "rich", "scipy"),
}


def require(extra: str) -> None:
    """Raise ``UserError`` unless the modules of ``extra`` are there.

    This comes before the command runs, so that nobody waits for a result only to learn that the
    library to show it with is missing.
    """
    if not all(_is_there(module) for module in MODULES[extra]):
        raise UserError(f"this command needs the extra '{extra}': pip install 'secagg[{extra}]'")


def _is_there(module: str) -> bool:
    """Looked for and not imported: few commands use all modules of an extra, and some are slow to import."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None

"""The optional dependencies that commands need."""

from importlib import import_module

from sims.cli.errors import UserError

# The modules that each extra of pyproject.toml brings.
MODULES = {"fl": ("torch",), "sims": ("rich",)}


def require(extra: str) -> None:
    """Raise ``UserError`` unless the modules of ``extra`` can be imported.

    This comes before the command runs, so that nobody waits for a result only to learn that the
    library to show it with is missing.
    """
    for module in MODULES[extra]:
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(
                f"this command needs the extra '{extra}': pip install 'secagg[{extra}]'"
            ) from error

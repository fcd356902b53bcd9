"""What the help of ``secagg`` says about its commands: by what they are for, a line or two for each."""

import shutil
import textwrap

from sims.cli.registry import GROUPS, Subparsers

_INDENT = 4
_NARROWEST = 40


def listing(commands: Subparsers) -> str:
    """All commands that were added, in their groups; those of no group come last."""
    # argparse keeps the help of commands in actions that have no public name.
    helps = {str(each.dest): str(each.help) for each in commands._choices_actions}
    grouped = {title: [name for name in names if name in helps] for title, names in GROUPS.items()}
    known = {name for names in grouped.values() for name in names}
    grouped["more"] = [name for name in helps if name not in known]
    column = _INDENT + 2 + max(map(len, helps), default=0)
    blocks = [_block(title, names, helps, column) for title, names in grouped.items() if names]
    return "\n\n".join([*blocks, "secagg COMMAND --help says more about each."])


def _block(title: str, names: list[str], helps: dict[str, str], column: int) -> str:
    return "\n".join([f"{title}:", *(_line(name, helps[name], column) for name in names)])


def _line(name: str, text: str, column: int) -> str:
    width = max(shutil.get_terminal_size().columns - 2, column + _NARROWEST)
    return textwrap.fill(
        text,
        width,
        initial_indent=f"{' ' * _INDENT}{name}".ljust(column),
        subsequent_indent=" " * column,
        break_on_hyphens=False,
    )

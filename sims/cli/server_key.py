"""The option ``--server-key`` of commands that check what a server has signed."""

import argparse
import re
from pathlib import Path

from sims.cli.commands import UserError, user_errors

_HEX_KEY = re.compile(r"[0-9a-fA-F]{64}")
_HELP = (
    "the server's public key, which has to have signed the records: 64 hexadecimal digits, a file with them, "
    "or the server's certificate; without, records are at most consistent, not authenticated (default None)"
)


def add_server_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server-key", metavar="KEY", help=_HELP)


def server_key(args: argparse.Namespace, command: str) -> bytes | None:
    """Return the public key that the option gives: 64 hex digits, or a file with these or a certificate; None
    without it. Raise `UserError` if it is neither."""
    text = args.server_key
    if text is None:
        return None
    if _HEX_KEY.fullmatch(text):
        return bytes.fromhex(text)
    try:
        content = Path(text).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise UserError(
            f"secagg {command}: --server-key {text} is neither 64 hexadecimal digits nor a file that can be "
            "read"
        ) from None
    return bytes.fromhex(content) if _HEX_KEY.fullmatch(content) else _of_certificate(Path(text), command)


def _of_certificate(path: Path, command: str) -> bytes:
    from secagg.errors import SecaggError
    from secagg.net.certificates import certificate_key
    from secagg.net.identity_and_registry_files import read_certificate

    with user_errors(f"{command}: --server-key", SecaggError):
        return certificate_key(read_certificate(path))

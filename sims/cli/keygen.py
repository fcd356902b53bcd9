"""``secagg keygen``: creates an identity, which is a private key and its certificate."""

import argparse
import re
import time
from pathlib import Path

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_whole

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "keygen",
        help="make the key and the certificate of a client, a server or an authority",
        description="Make an identity: NAME.key is its private key, which stays on the machine that uses it, "
        "and NAME.pem its certificate, by which others recognise it. A client gives its certificate "
        "to the authority, which enrols it (see secagg enrol); a server and an authority give theirs to all "
        "clients. Each needs an identity of its own.",
        epilog="No file is ever overwritten. The exit status is 2 if something is wrong.",
    )
    parser.add_argument("name", type=_name, metavar="NAME", help="the name of the two files, such as server")
    parser.add_argument(
        "--directory", type=Path, default=Path("."), metavar="DIR", help="where to put them (default .)"
    )
    add_whole(parser, "--days", 1, 36500, 3650, "how long the certificate is valid")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from secagg.errors import KeyFileError
    from secagg.keys import Identity
    from secagg.net.certificates import make_certificate
    from secagg.net.identity_and_registry_files import write_certificate, write_key

    key_file, certificate_file = (args.directory / f"{args.name}.{ending}" for ending in ("key", "pem"))
    identity = Identity.generate()
    certificate = make_certificate(identity, now=int(time.time()), days=args.days)
    with user_errors("keygen", KeyFileError):
        write_key(key_file, identity)
        try:
            write_certificate(certificate_file, certificate)
        except KeyFileError:
            key_file.unlink()  # unused, and useless without its certificate
            raise
    print(f"private key  {key_file} (keep it secret)")
    print(f"certificate  {certificate_file}")
    print(f"public key   {identity.public.hex()}")
    return 0


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name of letters, digits, dots, dashes and underscores; --directory says where"
        )
    return text

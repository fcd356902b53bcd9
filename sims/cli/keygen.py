"""``secagg keygen``: creates an identity, which is a private key and its certificate."""

import argparse
import re
import time
from pathlib import Path

from sims.cli.commands import Subparsers, UserError, user_errors
from sims.cli.options import MAX_ID, add_whole, whole

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "keygen",
        help="make the key and the certificate of a client, a server or an authority",
        description="Make an identity: NAME.key is its private key, which stays on the machine that uses it, "
        "and NAME.pem its certificate, by which others recognise it. A client gives its certificate "
        "to the authority, which enrols it (see secagg enrol); a server and an authority give theirs to all "
        "clients. Each needs an identity of its own.",
        epilog="With --renew, NAME.key and NAME.pem get a new key and certificate. The old ones are kept as "
        "NAME.old.key and NAME.old.pem. NAME.handover says, signed by the old key, that the new key takes "
        "its place, and whose key it is: --member or --server has to name the owner. Still older "
        "ones are kept as NAME.old-DIGITS.key and NAME.old-DIGITS.pem, with the first digits "
        "of their public key, because one of them may be enrolled. A client then gives NAME.pem and "
        "NAME.handover to the authority. Running processes take up the new files. No other file is "
        "ever overwritten. The exit status is 2 if something is wrong.",
    )
    parser.add_argument("name", type=_name, metavar="NAME", help="the name of the two files, such as server")
    parser.add_argument(
        "--directory", type=Path, default=Path("."), metavar="DIR", help="where to put them (default .)"
    )
    text = "give an identity that exists a new key and certificate (default False)"
    parser.add_argument("--renew", action="store_true", help=text)
    text = "with --renew: the identity is that of the client with this id (default None)"
    parser.add_argument("--member", type=whole(0, MAX_ID), metavar="ID", help=text)
    text = "with --renew: the identity is that of the server (default False)"
    parser.add_argument("--server", action="store_true", help=text)
    text = "with --renew: only make a certificate with new dates, for the same key (default False)"
    parser.add_argument("--same-key", action="store_true", help=text)
    add_whole(parser, "--days", 1, 36500, 3650, "how long the certificate is valid")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.renew:
        return _renew(args)
    if args.member is not None or args.server or args.same_key:
        raise UserError("secagg keygen: --member, --server and --same-key are for --renew only")
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


def _renew(args: argparse.Namespace) -> int:
    from secagg.errors import SERVER, KeyFileError, Peer
    from secagg.net.identity_and_registry_files import old_path
    from sims.deploy.key_renewal import IdentityFiles, renew_certificate, renew_key

    files = IdentityFiles(args.directory / f"{args.name}.key", args.directory / f"{args.name}.pem")
    dates = {"now": int(time.time()), "days": args.days}
    _check_owner(args)
    with user_errors("keygen", KeyFileError):
        if args.same_key:
            identity = renew_certificate(files, **dates)
        else:
            owner: Peer = SERVER if args.server else args.member
            identity = renew_key(files, owner, **dates)
    print(f"private key  {files.key} (keep it secret{', unchanged' if args.same_key else ''})")
    print(f"certificate  {files.certificate}")
    print(f"public key   {identity.public.hex()}")
    print(f"old pair     {old_path(files.key)}, {old_path(files.certificate)}")
    if not args.same_key:
        whose = "the server" if args.server else f"member {args.member}"
        print(f"hand-over    {files.hand_over} of {whose}")
    return 0


def _check_owner(args: argparse.Namespace) -> None:
    """Raise `UserError` unless the owner of a new key is named. The command cannot know the owner
    otherwise: files may have any name. With a hand-over of a wrong owner, the key cannot be enrolled."""
    named = (args.member is not None) + args.server
    if args.same_key and named:
        raise UserError("secagg keygen: --same-key needs no --member or --server: the key stays the same")
    if not args.same_key and named != 1:
        raise UserError(
            "secagg keygen: --renew needs --member ID for the key of a client, or --server for that of the "
            "server, and not both"
        )


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name of letters, digits, dots, dashes and underscores; --directory says where"
        )
    return text

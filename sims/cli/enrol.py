"""``secagg enrol``: creates and changes the registry: the list of all clients, signed by an authority."""

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sims.cli.commands import Subparsers, UserError, user_errors
from sims.cli.options import MAX_ID, add_value, whole
from sims.text_format import counted

if TYPE_CHECKING:
    from sims.deploy.enrolment import Changes, Enrolled

NEVER = "never"
_SIGNERS = {
    1: "handed over by its old key",
    2: "handed over by the authority",
    None: "without a hand-over: it cannot go on with its ledger; see --hand-over",
}
UNCHANGED = "unchanged"


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "enrol",
        help="enrol clients in the registry, or remove them",
        description="Make or change the registry: the list of all clients, signed by an authority. With it, "
        "clients recognise each other, and a server cannot invent clients. Every change raises its version. "
        "Beside it, in a file that ends in .pem, are the certificates of all members. A server needs "
        "both files; a client needs the registry, and both need the authority's certificate.",
        epilog="The authority is a key of its own, made with secagg keygen: it must be neither the server's "
        "nor a client's. Both files are replaced as a whole, the certificates first: if the command is "
        "interrupted between the two, the old registry is unchanged, and running the command again "
        "completes it. The exit status is 2 if something is wrong.",
    )
    text = "the authority's private key; with --show, its certificate will do"
    add_value(parser, "--authority", Path, Path("authority.key"), "FILE", text)
    text = "the registry to make or to change"
    add_value(parser, "--registry", Path, Path("registry.secagg"), "FILE", text)
    _add_changes(parser)
    parser.add_argument("--show", action="store_true", help="list the members and change nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run)


def _add_changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--member",
        type=_member,
        action="append",
        metavar="ID=CERTIFICATE",
        help=f"enrol the owner of this certificate as client ID, 0 to {MAX_ID}; an ID that is taken gets the "
        "new certificate; may be given many times (default None)",
    )
    text = (
        "sign the new key of the one --member yourself, because its old key is lost or stolen, and write the "
    )
    text += "hand-over for the client to this file (default None)"
    parser.add_argument("--hand-over", type=Path, metavar="FILE", help=text)
    text = "with --hand-over: the certificate of the key that is lost or stolen, if the registry no longer "
    text += "lists that key because the client was removed (default None)"
    parser.add_argument("--old-certificate", type=Path, metavar="FILE", help=text)
    text = "remove this client; may be given many times (default None)"
    parser.add_argument("--remove", type=whole(0, MAX_ID), action="append", metavar="ID", help=text)
    text = "from 00:00 UTC of this day on, the registry is refused; or never, as in a new registry"
    add_value(parser, "--expires", _expires, UNCHANGED, "YYYY-MM-DD", text)


def run(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError

    with user_errors("enrol", LocalError):
        enrolled = _show(args) if args.show else _enrol(args)
    found = _as_json(enrolled, args.registry)
    print(json.dumps(found, indent=2) if args.json else "\n".join(_lines(found, enrolled, args)))
    return 0


def _enrol(args: argparse.Namespace) -> "Enrolled":
    from secagg.net.identity_and_registry_files import read_key
    from sims.deploy.enrolment import enrol

    return enrol(args.registry, read_key(args.authority), _changes(args), now=int(time.time()))


def _show(args: argparse.Namespace) -> "Enrolled":
    from secagg.net.certificates import certificate_key
    from secagg.net.identity_and_registry_files import read_certificate, read_key
    from sims.deploy.enrolment import look

    hands_over = args.hand_over or args.old_certificate
    if args.member or args.remove or args.expires != UNCHANGED or hands_over:
        raise UserError(
            "secagg enrol: --show changes nothing; leave out --member, --remove, --expires, --hand-over and "
            "--old-certificate"
        )
    if args.authority.suffix == ".pem":
        return look(args.registry, certificate_key(read_certificate(args.authority)))
    return look(args.registry, read_key(args.authority).public)


def _changes(args: argparse.Namespace) -> "Changes":
    from sims.deploy.enrolment import Changes

    given = args.member or []
    members = dict(given)
    if len(members) != len(given):
        raise UserError("secagg enrol: --member gives two certificates for one ID")
    expires = None if args.expires == UNCHANGED else args.expires
    return Changes(members, frozenset(args.remove or ()), expires, args.hand_over, args.old_certificate)


# --- output ----------------------------------------------------------------------------------------


def _as_json(enrolled: "Enrolled", path: Path) -> dict[str, Any]:
    from secagg.net.identity_and_registry_files import bundle_path

    registry = enrolled.registry
    return {
        "registry": str(path),
        "certificates": str(bundle_path(path)) if enrolled.certificates else None,
        "version": registry.version,
        "digest": registry.digest.hex(),
        "expires": _day(registry.expires),
        "changed": enrolled.changed,
        "new_keys": {str(member): _SIGNERS[by] for member, by in enrolled.new_keys.items()},
        "members": [_row(enrolled, member) for member in sorted(registry.members)],
    }


def _row(enrolled: "Enrolled", member: int) -> dict[str, Any]:
    from secagg.net.certificates import expiry

    key, certificate = enrolled.registry.members[member], enrolled.certificates.get(member)
    end = None if certificate is None else _day(expiry(certificate))
    return {"id": member, "key": key.hex(), "certificate_expires": end}


def _lines(about: dict[str, Any], enrolled: "Enrolled", args: argparse.Namespace) -> list[str]:
    unchanged = "" if args.show or enrolled.changed else " (unchanged)"
    rows = {
        "registry": f"{about['registry']}, version {about['version']}{unchanged}",
        "certificates": about["certificates"] or "not here",
        "members": counted(len(about["members"]), "client"),
        "expires": about["expires"],
        "digest": about["digest"],
    }
    lines = [f"{name:<14}{text}" for name, text in rows.items()]
    lines += [f"{'new key':<14}member {member}, {by}" for member, by in about["new_keys"].items()]
    shown = about["members"] if args.show else []
    return [*lines, *(_member_line(row) for row in shown)]


def _member_line(row: dict[str, Any]) -> str:
    end = row["certificate_expires"]
    return f"{row['id']:<14}{row['key']}" + (f", certificate until {end}" if end else "")


def _day(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}" if seconds else NEVER


# --- input ------------------------------------------------------------------------------------------


def _member(text: str) -> tuple[int, Path]:
    member, equals, path = text.partition("=")
    if not equals or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not an ID and a file such as 7=client-7.pem")
    return whole(0, MAX_ID)(member), Path(path)


def _expires(text: str) -> int | str:
    if text in (UNCHANGED, NEVER):
        return 0 if text == NEVER else text
    try:
        seconds = int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a day such as 2030-12-31 nor {NEVER}"
        ) from None
    if seconds <= 0:  # 0 means never
        raise argparse.ArgumentTypeError(f"{text!r} is past")
    return seconds

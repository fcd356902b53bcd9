"""``secagg evidence``: examines evidence that a client lied, as a server has kept it."""

import argparse
from pathlib import Path

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_value, whole

UNPROVEN = 1


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "evidence",
        help="examine evidence that a client lied",
        description="Examine evidence that a client lied. Neither the evidence nor the server that kept it "
        "need be trusted: the evidence has signatures of the client itself and of others. Registry and table "
        "must be those of the session in which the client lied.",
        epilog="The exit status is 0 if the evidence proves the lie, 1 if it does not, and 2 if a file or an "
        "argument is wrong. A file of evidence is as secret as what the client sent in the sum in which it "
        "lied.",
    )
    parser.add_argument(
        "evidence", type=Path, metavar="FILE", help="such as client-7-0123456789abcdef.evidence"
    )
    text = "the registry of the session"
    add_value(parser, "--registry", Path, Path("registry.secagg"), "FILE", text)
    text = "the certificate of the authority that signed the registry"
    add_value(parser, "--authority", Path, Path("authority.pem"), "FILE", text)
    text = "the table of sums of the session"
    add_value(parser, "--table", Path, Path("sums.toml"), "FILE", text)
    parser.add_argument(
        "--corrupt",
        type=whole(0, 1 << 20),
        required=True,
        metavar="N",
        help="most clients that may lie, 0 to 1048576, as in the configuration of the server (default None)",
    )
    parser.set_defaults(run=run, extra="deploy")


def run(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError, ParameterError, Unproven
    from secagg.evidence import Evidence
    from secagg.evidence_examiner import examine
    from secagg.net.certificates import certificate_key
    from secagg.net.identity_and_registry_files import read_certificate, read_signed
    from sims.config_problems import ConfigError
    from sims.deploy.evidence_directory import EVIDENCE
    from sims.deploy.sum_specs_file import read_table

    with user_errors("evidence", LocalError):
        authority = certificate_key(read_certificate(args.authority))
        registry, table = read_signed(args.registry, authority=authority), read_table(args.table)
        try:
            evidence = Evidence.decode(EVIDENCE.read(args.evidence))
        except ParameterError as error:
            raise ConfigError(f"{args.evidence}: {error}") from None
    try:
        examine(evidence, registry=registry, table=table, corrupt=args.corrupt)
    except Unproven as error:
        print(f"unproven: this does not prove a {evidence.offence} of client {evidence.accused}: {error}")
        return UNPROVEN
    print(f"proven: client {evidence.accused} lied ({evidence.offence})")
    return 0

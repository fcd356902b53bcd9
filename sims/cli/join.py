"""``secagg join``: runs a client that takes part in secure sums, as its configuration file says."""

import argparse
from pathlib import Path

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_whole
from sims.cli.serve import add_alternatives


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "join",
        help="take part in the secure sums of a server",
        description="Take part in the sums of a server over TLS. CONFIG names the identity of the client, "
        "its policy, and the source of its values. If the server cannot be reached, the client tries again. "
        "SIGTERM leaves the session, notifies the server, and ends with exit status 0.",
        epilog="Everything is verified before a connection is made. docs/deployment.md explains the "
        "configuration. The exit status is 2 after an error that only an operator can repair.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration, such as join.toml")
    add_whole(parser, "--sessions", 0, 1 << 31, 0, "leave after this many sessions; 0: never")
    add_alternatives(parser, "connecting", "client")
    parser.set_defaults(run=run, extra="deploy")


def run(args: argparse.Namespace) -> int:
    from secagg.errors import SecaggError
    from sims.config_problems import ConfigError
    from sims.deploy.client_setup import load_client_setup, new_ledger
    from sims.deploy.config import is_scenario
    from sims.deploy.join import join

    with user_errors("join", SecaggError):
        if is_scenario(args.config):
            raise ConfigError(
                f"{args.config} is a scenario, for secagg serve; name the client's configuration, whose "
                "client.scenario names the scenario"
            )
        if args.check:
            setup = load_client_setup(args.config)
            print(f"{args.config}: everything is in order")
            for caution in setup.cautions:
                print(f"caution: {caution}")
        elif args.new_ledger:
            print(f"ledger  {new_ledger(args.config)}")
        else:
            join(args.config, sessions=args.sessions)
    return 0

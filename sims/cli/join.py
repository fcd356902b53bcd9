"""``secagg join``: runs a client that takes part in secure sums, as its configuration file says."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_whole
from sims.cli.serve import add_alternatives

if TYPE_CHECKING:
    from sims.deploy.join import OpenEngine


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
    _add_engines(parser)
    parser.set_defaults(run=run, extra="deploy")


def _add_engines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "on an engine", "Flower carries the connection, and client.server is not used: docs/engines.md"
    )
    either = group.add_mutually_exclusive_group()
    text = "be a node of the SuperLink at this address (default None)"
    either.add_argument("--flower", metavar="HOST:PORT", help=text)
    text = "get letters from a ClientApp, or another program, on this socket (default None)"
    either.add_argument("--relay", type=Path, metavar="SOCKET", help=text)
    text = "a group whose members may use the socket, as the account of the SuperNode (default None)"
    group.add_argument("--relay-group", metavar="GROUP", help=text)
    text = "what the SuperLink's certificate is verified with; None: those of the system (default None)"
    group.add_argument("--root-certificates", type=Path, metavar="FILE", help=text)
    text = "the key of the node, which is registered with the SuperLink (default None)"
    group.add_argument("--auth-supernode-private-key", type=Path, metavar="FILE", help=text)
    text = "speak to a SuperLink on this machine without its TLS; ours stays"
    group.add_argument("--insecure", action="store_true", help=text)


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
        engine = _engine(args)
        if args.check:
            setup = load_client_setup(args.config, through_engine=engine is not None)
            print(f"{args.config}: everything is in order")
            for caution in setup.cautions:
                print(f"caution: {caution}")
        elif args.new_ledger:
            print(f"ledger  {new_ledger(args.config)}")
        else:
            join(args.config, sessions=args.sessions, open_engine=engine)
    return 0


def _engine(args: argparse.Namespace) -> "OpenEngine | None":
    """Return a function that opens the engine which the options name, if any. Raise `ConfigError` if they
    contradict each other, or if the engine is not installed."""
    from secagg.errors import ParameterError
    from secagg.net.settings import Address
    from sims.config_problems import ConfigError

    for_flower = args.root_certificates or args.auth_supernode_private_key or args.insecure
    if args.flower is None and for_flower:
        raise ConfigError(
            "--root-certificates, --auth-supernode-private-key and --insecure belong to --flower HOST:PORT"
        )
    if args.relay is None and args.relay_group is not None:
        raise ConfigError("--relay-group belongs to --relay SOCKET: name the socket, too")
    if args.relay is not None:
        from sims.engines.flower.relay import RelayNode

        return lambda log: RelayNode(args.relay, log, group=args.relay_group)
    if args.flower is None:
        return None
    from sims.engines.versions import check_flower

    check_flower()
    from sims.engines.flower.fleet_node import open_node, read_node_settings

    try:
        address = Address.parse(args.flower)
    except ParameterError as error:
        raise ConfigError(f"--flower: {error}") from None
    settings = read_node_settings(
        address,
        insecure=args.insecure,
        root_certificates=args.root_certificates,
        private_key=args.auth_supernode_private_key,
    )
    return lambda log: open_node(settings, log)

"""``secagg serve``: runs a server that asks clients for secure sums, as its configuration file says."""

import argparse
from pathlib import Path

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import MAX_ID, whole


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve secure sums to the clients of a registry",
        description="Serve secure sums over TLS, session after session. CONFIG says who may connect, "
        "what is asked, and where totals and the ledger are kept; or it is a scenario with a table [deploy], "
        "whose model is then trained with the clients. SIGTERM abandons the current sum, "
        "notifies the clients, and ends with exit status 0.",
        epilog="Everything is verified before the first client can connect. docs/deployment.md explains the "
        "configuration. The exit status is 2 after an error that only an operator can repair.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration, such as serve.toml")
    text = "let this client, barred because it lied or was in a dispute, take part again; record it and exit"
    only = add_alternatives(parser, "listening", "server")
    only.add_argument("--forgive", type=whole(0, MAX_ID), metavar="ID", help=f"{text} (default None)")
    parser.set_defaults(run=run, extra="deploy")


def add_alternatives(
    parser: argparse.ArgumentParser, action: str, role: str
) -> "argparse._MutuallyExclusiveGroup":
    """Add --check (verify all files) and --new-ledger (create the ledger), after which `serve` or `join`
    exits without a connection. `action` and `role` are words for the help texts. Return the group of options
    of which only one may be given."""
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help=f"verify everything and exit, without {action}")
    text = f"make the ledger and exit: once, for a new {role}; restore a lost ledger from a backup"
    only.add_argument("--new-ledger", action="store_true", help=text)
    return only


def run(args: argparse.Namespace) -> int:
    from secagg.errors import SecaggError
    from sims.deploy.config import is_scenario
    from sims.deploy.serve import serve
    from sims.deploy.server_setup import forgive, load_server_setup, new_ledger

    with user_errors("serve", SecaggError):
        if is_scenario(args.config):
            return _train(args)
        if args.check:
            setup = load_server_setup(args.config)
            with setup.open_ledger() as ledger:
                barred = ledger.barred
            print(f"{args.config}: everything is in order")
            for caution in (*setup.cautions, *setup.bar_cautions(barred)):
                print(f"caution: {caution}")
        elif args.new_ledger:
            print(f"ledger  {new_ledger(args.config)}")
        elif args.forgive is not None:
            forgive(args.config, args.forgive)
            print(f"forgiven  client {args.forgive}")
        else:
            serve(args.config)
    return 0


def _train(args: argparse.Namespace) -> int:
    from sims.config_problems import ConfigError
    from sims.deploy.training_server import load_deployment, serve_training

    if args.new_ledger:
        raise ConfigError("--new-ledger: a training run makes its ledger itself, in its run directory")
    if args.forgive is not None:
        raise ConfigError("--forgive: a training run goes on without clients that are barred, to its end")
    if args.check:
        _, terms, _ = load_deployment(args.config)
        print(f"{args.config}: everything is in order")
        for caution in terms.cautions:
            print(f"caution: {caution}")
    else:
        serve_training(args.config)
    return 0

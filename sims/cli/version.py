"""``secagg version``: the versions that belong in a bug report."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from sims.cli.registry import Subparsers

DISTRIBUTIONS = (
    "secagg",
    "cryptography",
    "dp-accounting",
    "msgpack",
    "numpy",
    "pydantic",
    "rich",
    "scipy",
    "torch",
    "trio",
)


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("version", help="show the versions of secagg and its libraries")
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace) -> int:
    print(f"python {platform.python_version()}")
    for name in DISTRIBUTIONS:
        print(f"{name} {_installed(name)}")
    return 0


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"

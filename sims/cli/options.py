"""Options that commands share. The help of each tells its range and its default."""

import argparse
from dataclasses import dataclass

from sims.cli.numbers import whole

TRUST_LEVELS = ("curious_server", "malicious_server")


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    name: str
    least: int
    most: int
    default: int
    text: str

    def add(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            self.name,
            type=whole(self.least, self.most),
            default=self.default,
            metavar="N",
            help=f"{self.text}, {self.least} to {self.most} (default {self.default})",
        )


def add_choice(
    parser: argparse.ArgumentParser, name: str, choices: tuple[str, ...], *, default: str, text: str
) -> None:
    """One of a few words; argparse itself shows them."""
    parser.add_argument(name, choices=choices, default=default, help=f"{text} (default {default})")


def add_trust(parser: argparse.ArgumentParser) -> None:
    add_choice(
        parser,
        "--trust",
        TRUST_LEVELS,
        default="malicious_server",
        text="what clients guard against: a server that only reads along, or one that also lies",
    )

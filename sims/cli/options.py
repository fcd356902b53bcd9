"""Adds and parses options that several commands share. Each option's help states its range and default."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor

TRUST_LEVELS = ("curious_server", "malicious_server")
KEY_AGREEMENTS = ("x25519", "x25519+ml-kem-768")
TRANSPORTS = ("tls", "flower", "flower-relay", "nvflare", "ray")  # those of `sims.plan.transport_latency`
MAX_ID = (1 << 32) - 1  # of a client


@dataclass(frozen=True)
class WholeNumberOption:
    """A command-line option for a whole number from `least` to `most`. `text` begins its help text."""

    name: str
    least: int
    most: int
    default: int
    text: str

    def add(self, parser: argparse.ArgumentParser) -> None:
        add_whole(parser, self.name, self.least, self.most, self.default, self.text)


def add_whole(
    parser: argparse.ArgumentParser, name: str, least: int, most: int, default: int, text: str
) -> None:
    """Add an option for a whole number from `least` to `most`. `text` is the start of its help text."""
    add_value(parser, name, whole(least, most), default, "N", f"{text}, {least} to {most}")


def add_value(
    parser: argparse.ArgumentParser,
    name: str,
    parse: Callable[[str], object],
    default: object,
    unit: str,
    text: str,
) -> None:
    """Add an option that `parse` converts. Its help is `text` and the default, and its metavar `unit`."""
    parser.add_argument(name, type=parse, default=default, metavar=unit, help=f"{text} (default {default})")


def add_choice(
    parser: argparse.ArgumentParser, name: str, choices: tuple[str, ...], *, default: str, text: str
) -> None:
    """Add an option whose value is one of the words in `choices`."""
    parser.add_argument(name, choices=choices, default=default, help=f"{text} (default {default})")


def add_trust(parser: argparse.ArgumentParser) -> None:
    add_choice(
        parser,
        "--trust",
        TRUST_LEVELS,
        default="malicious_server",
        text="what clients guard against: a server that only reads along, or one that also lies",
    )


def add_key_agreement(parser: argparse.ArgumentParser) -> None:
    add_choice(
        parser,
        "--key-agreement",
        KEY_AGREEMENTS,
        default="x25519",
        text="how clients agree on secrets: with ML-KEM-768, also recorded messages stay secret from a later "
        "quantum computer",
    )


def add_corrupt(parser: argparse.ArgumentParser, default: int | Fraction, text: str) -> None:
    """Add `--corrupt`: the number or fraction of clients that may collude. `text` completes its help."""
    text = f"most clients that collude with the server: a whole number{text}"
    add_value(parser, "--corrupt", number_or_proportion, default, "PART", text)


def add_dropout(parser: argparse.ArgumentParser, when: str) -> None:
    text = f"part of the clients that may leave in {when}, from 0 to below 1, such as 0.1 or 1/10"
    add_value(parser, "--dropout", proportion, Fraction(1, 10), "PART", text)


def colluders(args: argparse.Namespace) -> int:
    """Return the number of colluders that `--corrupt` gives; a fraction of `--clients` is rounded down."""
    corrupt: int | Fraction = args.corrupt
    return corrupt if isinstance(corrupt, int) else floor(corrupt * args.clients)


_MOST_DIGITS = 1000


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a function that parses a whole number from `least` to `most` for argparse."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return number

    return parse


def fraction(text: str) -> Fraction:
    """Parse a number for argparse as an exact fraction: 0.1 is one tenth, not the nearest float."""
    try:
        # Check the exponent first: an exact 1e999999999 would take all memory.
        if abs(int(text.lower().partition("e")[2] or 0)) > _MOST_DIGITS or len(text) > _MOST_DIGITS:
            raise ValueError
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 0.1 or 1/10") from None


def proportion(text: str) -> Fraction:
    """Parse an exact fraction for argparse, from 0 to below 1."""
    share = fraction(text)
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not at least 0 and below 1")
    return share


def delta(text: str) -> float:
    """Parse a differential-privacy delta for argparse: above 0 and below 1, also when rounded to a float."""
    number = float(fraction(text))
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and below 1")
    return number


def number_or_proportion(text: str) -> int | Fraction:
    """Parse a whole number, or a proportion such as 0.1 or 1/10, for argparse."""
    try:
        return int(text) if text.isdecimal() else proportion(text)
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a whole number nor a part of all such as 0.1 or 1/10"
        ) from None

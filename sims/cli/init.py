"""``secagg init``: writes a commented scenario (the settings of a simulation) to start from."""

import argparse
from pathlib import Path

from sims.cli.commands import Subparsers, UserError, has
from sims.cli.options import add_choice, add_value

CHANNELS = ("plain", "secure", "processes", "ray")


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "init",
        help="write a commented scenario to start from",
        description="Write NAME.toml, a scenario that runs without changes, on data of the package. "
        "It explains every key. An existing file is never overwritten.",
        epilog="The exit status is 2 if something is wrong.",
    )
    parser.add_argument("name", type=Path, metavar="NAME", help="the file, such as mine or mine.toml")
    add_value(parser, "--algorithm", str, "fedavg", "NAME", "the algorithm; secagg plan lists all")
    add_choice(parser, "--channel", CHANNELS, default="secure", text="how sums are made")
    text = "add noise to every sum, and say whether the run then learns (default: noise in comments)"
    parser.add_argument("--private", action="store_true", help=text)
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from secagg.errors import ParameterError
    from sims.scenario.template import written

    if args.name.name in ("", ".."):
        raise UserError(f"secagg init: {str(args.name)!r} is no name of a file: take one such as mine")
    path = args.name if args.name.suffix == ".toml" else args.name.with_name(f"{args.name.name}.toml")
    try:
        text = written(path.stem, algorithm=args.algorithm, channel=args.channel, private=args.private)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except ParameterError as error:
        raise UserError(f"secagg init: --algorithm: {error}") from None
    except FileExistsError:
        raise UserError(f"secagg init: {path} exists, and is left as it is: take another name") from None
    except OSError as error:
        raise UserError(f"secagg init: {path} cannot be written: {error.strerror}") from None
    print(f"{path} is written: secagg simulate {path} runs it")
    if args.private and has("fl"):
        _say_learning(path)
    return 0


def _say_learning(path: Path) -> None:
    """Print whether the run that the written scenario describes will learn, in spite of its noise."""
    from sims.plan.signal_and_noise import verdict
    from sims.scenario import load
    from sims.simulation.expected_signal import expected_signal

    (cell,) = load(path).variants
    found = expected_signal(cell.settings, Path())  # its data come with the package
    assert found is not None  # it has noise
    print(f"will it learn? {verdict(found)}")

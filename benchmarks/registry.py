"""The registry of benchmarks: an entry of `BENCHMARKS` for each."""

import argparse
import sys
from fractions import Fraction
from importlib.util import find_spec
from math import floor
from pathlib import Path

from benchmarks.options import Benchmark, Choice, Flag, Number, Report
from sims.cli.options import (
    TRUST_LEVELS,
    WholeNumberOption,
    fraction,
    number_or_proportion,
    proportion,
    whole,
)


def progress(text: str) -> None:
    """Print the progress if the output is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


# --- primitives ---


PRIMITIVES_OPTIONS = (
    WholeNumberOption("--clients", 3, 1024, 100, "size of the cohort"),
    WholeNumberOption("--dim", 1, 1 << 24, 1000, "elements of the vector"),
    WholeNumberOption("--sums", 1, 64, 3, "sums in the session"),
    WholeNumberOption("--bits", 1, 64, 32, "bits sent for each element"),
)


def _measure_primitives(args: argparse.Namespace) -> Report:
    from benchmarks.primitives import Setting, measure

    return measure(Setting(args.clients, args.dim, args.sums, args.bits), progress)


def _show_primitives(report: Report) -> None:
    from benchmarks.primitives import PrimitivesReport
    from benchmarks.view import show_primitives
    from sims.console_progress import Console

    assert isinstance(report, PrimitivesReport)
    show_primitives(report, Console())


# --- sum ---


def _neighbours(text: str) -> int | None:
    """Parse a number of neighbours; None if they are to be chosen."""
    return None if text == "auto" else whole(2, MOST_NEIGHBOURS)(text)


def _runs(text: str) -> int | None:
    return None if text == "auto" else whole(1, MOST_RUNS)(text)


MOST_RUNS = 99
TYPICAL_RUNS = 5
# More clients, or more elements of all vectors together, than can be summed several times in a minute.
MANY_CLIENTS = 200
MANY_ELEMENTS = 10**8

DROPOUT = Number(
    "--dropout",
    proportion,
    Fraction(1, 10),
    "PART",
    "part of the clients that vanish after sharing and before masking, from 0 to below 1 such as 0.1 or 1/10",
)
DROPOUT_ALLOWED = Number(
    "--dropout",
    proportion,
    Fraction(1, 10),
    "PART",
    "part of the clients for whose loss a graph is found, from 0 to below 1 such as 0.1 or 1/10",
)
CORRUPT = Number(
    "--corrupt",
    number_or_proportion,
    Fraction(1, 10),
    "PART",
    "most clients that collude with the server: a whole number from 0, or a part of all from 0 to below "
    "1 such as 0.1 or 1/10",
)
MOST_CLIENTS = MOST_NEIGHBOURS = 1 << 20
MOST_ELEMENTS = 1 << 28

KEY_AGREEMENTS = ("x25519", "x25519+ml-kem-768")

SUM_OPTIONS = (
    WholeNumberOption("--clients", 3, MOST_CLIENTS, 50, "size of the cohort"),
    WholeNumberOption("--dim", 1, MOST_ELEMENTS, 1_000_000, "elements of the vector"),
    Number(
        "--neighbours",
        _neighbours,
        "auto",
        "N",
        f"least neighbours of a client on a ring, 2 to {MOST_NEIGHBOURS}, or auto: the graph is chosen from "
        "the size of the cohort, --corrupt and --dropout",
    ),
    WholeNumberOption("--bits", 1, 64, 32, "bits sent for each element"),
    DROPOUT,
    CORRUPT,
    Choice(
        "--trust",
        TRUST_LEVELS,
        "what clients guard against: a server that only reads along, or one that also lies",
    ),
    WholeNumberOption("--processes", 1, 64, 1, "processes in which the server removes masks"),
    Flag("--noise", "clients add noise, and what that costs is set beside its parts"),
    Choice("--agreement", KEY_AGREEMENTS, "how clients agree on secrets"),
    Number(
        "--runs",
        _runs,
        "auto",
        "N",
        f"sessions, the medians of which are printed, 1 to {MOST_RUNS}, or auto: {TYPICAL_RUNS}, and 1 where "
        "that takes long",
    ),
)


def _colluders(args: argparse.Namespace) -> int:
    corrupt: int | Fraction = args.corrupt
    return floor(corrupt * args.clients) if isinstance(corrupt, Fraction) else corrupt


def _measure_sum(args: argparse.Namespace) -> Report:
    from benchmarks.repeats import measure_often
    from benchmarks.sum_setting import SumSetting
    from secagg import Trust
    from secagg.hybrid_keys import KeyAgreement
    from sims.console_progress import bar

    setting = SumSetting(
        clients=args.clients,
        dim=args.dim,
        bits=args.bits,
        corrupt=_colluders(args),
        dropout=args.dropout,
        trust=Trust.parse(args.trust),
        neighbours=args.neighbours,
        processes=args.processes,
        noise=args.noise,
        agreement=KeyAgreement.parse(args.agreement),
    )
    quick = args.clients <= MANY_CLIENTS and args.clients * args.dim <= MANY_ELEMENTS
    with bar() as progress:
        return measure_often(setting, progress, runs=args.runs or (TYPICAL_RUNS if quick else 1))


def _show_sum(report: Report) -> None:
    from benchmarks.sum_view import show_sum
    from benchmarks.sums import SumReport
    from sims.console_progress import Console

    assert isinstance(report, SumReport)
    show_sum(report, Console())


# --- peers ---


def _dims(text: str) -> tuple[int, ...]:
    return tuple(whole(1, MOST_ELEMENTS)(each) for each in text.split(","))


PEERS_OPTIONS = (
    WholeNumberOption("--clients", 3, MOST_CLIENTS, 50, "size of the cohort"),
    WholeNumberOption("--neighbours", 2, MOST_NEIGHBOURS, 24, "least neighbours of a client on a ring"),
    DROPOUT,
    CORRUPT,
    Number(
        "--dims",
        _dims,
        "1000,10000,100000,1000000",
        "N,N,...",
        f"elements of the vectors, each 1 to {MOST_ELEMENTS}; for 10000000, Flower takes 8 minutes and 5 GB",
    ),
)


def _measure_peers(args: argparse.Namespace) -> Report:
    from benchmarks.peers import PeersSetting, measure
    from sims.console_progress import bar

    setting = PeersSetting(
        clients=args.clients,
        neighbours=args.neighbours,
        corrupt=_colluders(args),
        dropout=args.dropout,
        dims=args.dims,
    )
    with bar() as progress:
        return measure(setting, progress)


def _show_peers(report: Report) -> None:
    from benchmarks.peers import PeersReport
    from benchmarks.peers_view import show_peers
    from sims.console_progress import Console

    assert isinstance(report, PeersReport)
    show_peers(report, Console())


def _check_peers() -> None:
    from benchmarks.flower import check_installed

    check_installed()


# --- noise ---


MOST_SAMPLES = 1 << 27
LARGEST_SIGMA = 1 << 58


def _sigma(text: str) -> Fraction:
    sigma = fraction(text)
    if not 0 < sigma <= LARGEST_SIGMA:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 2^58")
    return sigma


NOISE_OPTIONS = (
    Number(
        "--sigma",
        _sigma,
        Fraction(2),
        "SIGMA",
        "standard deviation, a number above 0 and at most 2^58 such as 2, 0.5 or 1/3, read exactly",
    ),
    WholeNumberOption("--size", 1, MOST_SAMPLES, 20_000_000, "samples drawn at once"),
)


def _measure_noise(args: argparse.Namespace) -> Report:
    from benchmarks.noise import NoiseSetting, measure
    from sims.console_progress import bar

    with bar() as progress:
        return measure(NoiseSetting(args.sigma, args.size), progress)


def _show_noise(report: Report) -> None:
    from benchmarks.noise import NoiseReport
    from benchmarks.noise_view import show_noise
    from sims.console_progress import Console

    assert isinstance(report, NoiseReport)
    show_noise(report, Console())


# --- network ---


NETWORK_OPTIONS = (
    WholeNumberOption("--clients", 3, 1024, 50, "size of the cohort"),
    WholeNumberOption("--dim", 1, 1 << 24, 1_000_000, "elements of the vector"),
    WholeNumberOption("--sums", 1, 64, 1, "sums in the session"),
    WholeNumberOption(
        "--neighbours", 0, 1024, 24, "least neighbours of a client on a ring; with 0, everybody's"
    ),
    WholeNumberOption("--workers", 0, 1024, 2, "processes that host the clients; with 0, one for each"),
    Choice("--trust", TRUST_LEVELS, "what clients guard against; a ring needs a curious_server"),
    WholeNumberOption("--runs", 1, MOST_RUNS, TYPICAL_RUNS, "sessions, the medians of which are printed"),
)


def _measure_network(args: argparse.Namespace) -> Report:
    from benchmarks.network import measure
    from secagg import Trust
    from secagg.session_params import SessionParams
    from sims.console_progress import bar
    from sims.drill.config import DrillConfig

    setting = DrillConfig(
        clients=args.clients,
        dim=args.dim,
        kill=Fraction(0),
        params=SessionParams(trust=Trust.parse(args.trust), corrupt=args.clients // 10, sums=args.sums),
        seed=0,
        workers=args.workers,
        neighbours=args.neighbours,
    )
    with bar() as progress:
        return measure(setting, progress, runs=args.runs)


def _show_network(report: Report) -> None:
    from benchmarks.network import NetworkReport
    from benchmarks.network_view import show_network
    from sims.console_progress import Console

    assert isinstance(report, NetworkReport)
    show_network(report, Console())


# --- training ---


MOST_FEATURES = 1 << 20


def _features(text: str) -> int:
    return whole(1, MOST_FEATURES)(text)


TRAINING_OPTIONS = (
    WholeNumberOption("--clients", 1, 1024, 100, "clients that train; at most, where all models are trained"),
    WholeNumberOption("--batch", 1, 4096, 10, "samples of a step"),
    WholeNumberOption(
        "--steps", 1, 10_000, 5, "local steps of each client; at most, where all models are trained"
    ),
    Number("--model", str, None, "NAME", "a single model, by the name that the table of all gives it"),
    Number(
        "--features",
        _features,
        None,
        "N",
        f"a single softmax regression with so many features, 1 to {MOST_FEATURES}, and 10 classes",
    ),
)


def _measure_training(args: argparse.Namespace) -> Report:
    _check_training()
    from benchmarks.training import TrainingSetting, measure
    from sims.console_progress import bar

    setting = TrainingSetting(args.clients, args.batch, args.steps, args.model, args.features)
    with bar() as progress:
        return measure(setting, progress)


def _show_training(report: Report) -> None:
    from benchmarks.training import TrainingReport
    from benchmarks.training_view import show_training
    from sims.console_progress import Console

    assert isinstance(report, TrainingReport)
    show_training(report, Console())


def _check_training() -> None:
    from secagg.errors import LocalError

    if find_spec("torch") is None:
        raise LocalError("it needs torch: pip install 'secagg[fl]'")


# --- overhead ---


OVERHEAD_OPTIONS = (
    WholeNumberOption("--clients", 3, 512, 100, "clients, among whom the digits are dealt out"),
    WholeNumberOption("--sums", 1, 64, 16, "sums of a session, each of which is a round"),
    WholeNumberOption("--steps", 1, 10_000, 5, "local steps of each client"),
    DROPOUT_ALLOWED,
    CORRUPT,
    WholeNumberOption(
        "--runs", 1, MOST_RUNS, 3, "sessions of plain sums and of a ring, the medians of which are printed"
    ),
    WholeNumberOption(
        "--flower-clients", 0, 512, 20, "clients of the comparison with Flower; with 0, there is none"
    ),
    WholeNumberOption("--flower-rounds", 2, 10_000, 40, "rounds of that comparison that are timed"),
    Number(
        "--flower-python",
        str,
        None,
        "PYTHON",
        "the interpreter of an environment with flwr[simulation], where it is not this one",
    ),
)


def _measure_overhead(args: argparse.Namespace) -> Report:
    _check_training()
    from benchmarks.overhead import OverheadSetting, measure
    from sims.console_progress import bar

    setting = OverheadSetting(
        clients=args.clients,
        sums=args.sums,
        steps=args.steps,
        corrupt=_colluders(args),
        dropout=args.dropout,
        runs=args.runs,
        flower_clients=args.flower_clients,
        flower_rounds=args.flower_rounds,
        flower_python=args.flower_python,
    )
    with bar() as progress:
        return measure(setting, progress)


def _show_overhead(report: Report) -> None:
    from benchmarks.overhead import OverheadReport
    from benchmarks.overhead_view import show_overhead
    from sims.console_progress import Console

    assert isinstance(report, OverheadReport)
    show_overhead(report, Console())


# --- ray ---


RAY_OPTIONS = (
    Choice("--task", ("digits", "mnist"), "softmax regression on digits, or a CNN for MNIST"),
    WholeNumberOption("--clients", 3, 1024, 200, "clients, among whom the samples are dealt out"),
    WholeNumberOption("--actors", 1, 256, 2, "actors of Ray, or processes, that share the clients"),
    WholeNumberOption("--steps", 1, 10_000, 5, "local steps of each client"),
    WholeNumberOption("--turns", 1, MOST_RUNS, 5, "turns of each way, the medians of which are printed"),
    WholeNumberOption("--rounds", 1, 1000, 4, "rounds in a row, in each turn"),
    Number("--data", Path, None, "FILE", "mnist.npz with x_train and y_train; without it, images are random"),
)


def _measure_ray(args: argparse.Namespace) -> Report:
    _check_ray()
    from benchmarks.ray_rounds import RaySetting, measure
    from benchmarks.ray_tasks import RoundTask
    from sims.console_progress import bar

    setting = RaySetting(
        task=RoundTask(args.task, args.clients, args.steps),
        actors=args.actors,
        turns=args.turns,
        rounds=args.rounds,
        data=args.data,
    )
    with bar() as progress:
        return measure(setting, progress)


def _show_ray(report: Report) -> None:
    from benchmarks.ray_rounds import RayReport
    from benchmarks.ray_view import show_ray
    from sims.console_progress import Console

    assert isinstance(report, RayReport)
    show_ray(report, Console())


def _check_ray() -> None:
    from sims.runtime.ray.cluster import require_ray

    _check_training()
    require_ray()


BENCHMARKS = (
    Benchmark(
        "primitives",
        "CPU time per client and sum, split by primitive",
        PRIMITIVES_OPTIONS,
        _measure_primitives,
        _show_primitives,
    ),
    Benchmark(
        "sum",
        "one sum with drop-outs: CPU time beside its limit, bytes, memory of the server",
        SUM_OPTIONS,
        _measure_sum,
        _show_sum,
    ),
    Benchmark(
        "noise",
        "samples of the discrete Gaussian beside their key stream, and OpenDP where it is installed",
        NOISE_OPTIONS,
        _measure_noise,
        _show_noise,
    ),
    Benchmark(
        "network",
        "sessions between processes over TLS: by the clock, beside their CPU time in one process",
        NETWORK_OPTIONS,
        _measure_network,
        _show_network,
    ),
    Benchmark(
        "training",
        "clients' local training, together and one by one, where torch is installed",
        TRAINING_OPTIONS,
        _measure_training,
        _show_training,
        _check_training,
    ),
    Benchmark(
        "overhead",
        "training over secure sums beside plain ones by stage, and plain ones beside Flower's simulation",
        OVERHEAD_OPTIONS,
        _measure_overhead,
        _show_overhead,
        _check_training,
    ),
    Benchmark(
        "ray",
        "rounds with clients in actors of Ray, beside one process and worker processes",
        RAY_OPTIONS,
        _measure_ray,
        _show_ray,
        _check_ray,
    ),
    Benchmark(
        "peers",
        "the same sums by Flower's SecAgg+, side by side, where flwr is installed",
        PEERS_OPTIONS,
        _measure_peers,
        _show_peers,
        _check_peers,
    ),
)

"""Writes the template of a scenario file, with every key and its meaning. In it, lines that begin with `# `
are comments, and lines that begin with `#` and no blank are settings that are disabled."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from protocols.algorithm import Algorithm, AnyAlgorithm
from protocols.catalogue import find
from protocols.catalogue_entry import CatalogueEntry, Parameter
from protocols.server_optimiser import ServerOptimiser, WithServerOptimiser
from secagg.errors import ParameterError

_WIDTH: Final = 100
# Parameters that a simulation provides itself. A `rate` is provided only if the algorithm requires one.
_PROVIDED: Final = frozenset({"rate", "population"})
# Values that the private variant requires, so that [privacy] can be enabled.
_WITH_NOISE: Final = {"weighted": False, "fast": False}
_CLIP: Final = "clip"


@dataclass(frozen=True)
class _NoiseValues:
    """A clip that updates on digits reach, and an epsilon, with which a private run of 50 clients learns."""

    clip: float = 2.0
    epsilon: float = 8.0


_USUAL: Final = _NoiseValues()
# Updates of these algorithms are shorter, or their noise is shared by more sums or by fewer clients.
_NOISE_VALUES: Final = {
    "fedprox": _NoiseValues(clip=0.5),
    "fedavg+": _NoiseValues(clip=0.5),
    "lg-fedavg": _NoiseValues(clip=0.3),
    "lp-proj-2": _NoiseValues(clip=0.1),
    "pfedme": _NoiseValues(clip=0.1, epsilon=16.0),
    "per-fedavg": _NoiseValues(clip=0.05, epsilon=16.0),
    "simplicial": _NoiseValues(clip=1.0, epsilon=20.0),
}
_STEP: Final = 0.5
_PARTICIPATIONS: Final = 5  # of 10 rounds, each of 20 of 50 clients


@dataclass(frozen=True)
class _Size:
    """How many clients train, and how long each of them trains in a round."""

    clients: int = 20
    epochs: int = 2
    batch: int = 16


_PLAIN: Final = _Size()
_FOR_NOISE: Final = _Size(clients=50, epochs=4, batch=8)
# Learning rates on digits: with the default pull of lp-proj-2, larger rates diverge.
_RATE: Final = 0.3
_RATES: Final = {"lp-proj-2": 0.05}

_HEAD: Final = """\
# {name}: {summary}, on the digits that come with the package.
#
#   secagg simulate {name}.toml
#   secagg simulate {name}.toml --quick --set training.rate=0.1
#
# Lines that begin with a # and a letter or a bracket are settings that are left out, with their defaults or
# an example: remove the # to set them. Errors are reported before the run starts.

#name = "{name}"  # of the results; by default that of this file
seed = 1  # decides all that is drawn: data, partition, who is invited, attacks, drop-outs
#insecure_seed = true  # whether it decides keys, rounding and noise, too: repeatable, and secret no more
rounds = 10

[data]  # where samples come from: see docs/training.md for the kinds there are
kind = "digits"
# of kinds that are read from files: directory = "mnist", within --data

[partition]  # how they are spread over clients; left out where data has clients already
kind = "dirichlet"
alpha = 0.5  # of this kind: the smaller, the fewer classes has a client
clients = {clients}
test = 0.2  # part of every client's samples; "given" is the data set's own test set
validation = 0.0
held_out = 0  # clients that never train

[model]
kind = "softmax"  # or linear, mlp, cnn-mnist, lenet, resnet, ...; further keys are its parameters
#start = ""  # the directory of a kept run of the same model, to begin with what it came to

[training]  # what a client does between two sums
rate = {rate}
epochs = {epochs}  # or: steps = 10
batch = {batch}  # without it, a step takes all data of a client
#momentum = 0.0
#weight_decay = 0.0
#clip = 10.0  # bounds the norm of every gradient
#schedule = {{kind = "constant", every = 100, factor = 0.5}}  # how the rate falls from round to round
#loss = "cross-entropy"  # or squared, logistic
#device = "cpu"  # or auto, cuda, mps
#precision = "float32"  # or float64
#way = "auto"  # clients all at once ("together") or "one-by-one"

"""

_SERVER: Final = """\
#[server]  # how the common model moves along what comes out of a round
#kind = "sgd"  # or adam, yogi, which have rate, beta1, beta2, epsilon and corrected
#rate = 1.0
#momentum = 0.9

"""

_COHORT: Final = """\
[cohort]  # who takes part in a round
{per_round}#stragglers = 0.0  # part of them that has time for some of the local steps only

#[dropout]  # who goes missing, drawn for every client and round
#training = 0.05  # part of the invited that never send anything in a round
#between = 0.0  # chance to be missing from a later sum of the round
#group = 0.0  # chance to leave between two sums of the same vector
#reveal = 0.02  # chance to go between sending a masked input and helping to unmask the sum

#[attack]  # what some clients do instead
#kind = "label-flip"  # or image-negation, sign-flip, gaussian, scaling, omniscient, ...: docs/training.md
#fraction = 0.2
#selection = "count"  # of clients, or of all "samples"
#level = "update"  # poisoned data included; "answer": what is sent of it; "message": residues inside a sum

[channel]  # how sums are made
kind = "{channel}"  # "plain", "secure" (machines in one process), "processes" (many, over TLS) or "ray"
trust = "curious_server"  # or malicious_server
corrupt = 0  # clients that collude with the server
dropout = 0.2  # part of the cohort that a session stands to lose
#workers = 2  # of kinds "processes" and "ray": how many processes or actors share the clients
#sums = 64  # most sums of a session, which then begins anew
#graph = "auto"  # who shares secrets with whom: "complete", or "ring" for large cohorts
#key_agreement = "x25519"  # or "x25519+ml-kem-768", against those who record now and decrypt later
#min_difference = 0  # sums of a kind are over the same clients, or over clients that differ by so many
#[channel.ray]  # of kind "ray"
#kind = "secure"  # or "plain"
#address = "local"  # a new Ray on this machine; "auto": a cluster that runs here; or HOST:PORT
#num_cpus = 1.0  # of each actor
#num_gpus = 0.0  # of each actor: 1/k for k actors on a GPU

[evaluation]  # what is measured with full knowledge of all clients: not part of the system
every = 5  # rounds
what = "{what}"  # "common", every client's own ("personal"), or "both"
part = "test"
held_out = false  # whether clients that never train are measured, too
#observe = ["movement"]  # further observations, by name

#[tail]  # a private histogram of clients' errors, over the same channel
#epsilon = 4.0
#delta = 1e-5
#bins = 8
#every = 0  # rounds; 0 is at the end only

[output]
keep = "run"  # a directory for every run, with ledger, metrics and report; "table" keeps a line of results
#identity = "server.key"  # of secagg keygen, to sign the ledger with; by default one is made

#[audit]
#canaries = 200  # trials of the noise of [privacy] or [tail], which prove a lower bound on epsilon

#[sweep]  # one cell for every combination of values
#"training.rate" = [0.1, 0.3]

#[quick]  # what --quick sets, beside two rounds of the first cell
#"partition.clients" = 10
"""


def written(name: str, *, algorithm: str = "fedavg", channel: str = "secure", private: bool = False) -> str:
    """Return a scenario file with comments, ready to run. If `private`, its sums have noise; otherwise, the
    settings for noise are comments. Raise `ParameterError` for an unknown algorithm, or if `private` and the
    algorithm has no private variant."""
    entry = find(algorithm)
    if private and entry.budget is None:
        raise ParameterError(f"{algorithm} has no private variant: leave out --private")
    size = _PLAIN if entry.budget is None else _FOR_NOISE
    built = entry.build(dim=10, clients=size.clients, **entry.example)
    per_round = "" if built.needs_all_clients else "#per_round = 20  # clients drawn for every round; all\n"
    return (
        _HEAD.format(name=name, summary=entry.summary, rate=_RATES.get(entry.name, _RATE), **asdict(size))
        + _algorithm(entry, private=private)
        + _server(entry, built)
        + _privacy(entry, private=private)
        + _COHORT.format(per_round=per_round, channel=channel, what=_what(built))
    )


def _what(built: AnyAlgorithm) -> str:
    """Return "common", "personal" or "both": which models an algorithm has, and so what to measure."""
    if built.table is None:
        return "personal"
    within = built.algorithm if isinstance(built, WithServerOptimiser) else built
    return "common" if type(within).personal is Algorithm.personal else "both"


def _algorithm(entry: CatalogueEntry, *, private: bool) -> str:
    lines = [
        "[algorithm]  # secagg plan says what each asks of clients, and reveals",
        f'name = "{entry.name}"',
    ]
    for each in entry.settings:
        left_out = each.name in _PROVIDED and (each.required or each.name == "population")
        if not each.private and not left_out:
            lines += _setting(entry, each, private=private)
    return "\n".join(lines) + "\n\n"


def _setting(entry: CatalogueEntry, each: Parameter, *, private: bool) -> list[str]:
    value = entry.example.get(each.name, each.default)
    if entry.budget is not None:
        value = _WITH_NOISE.get(each.name, value)
        if each.name == _CLIP and each.name in entry.example:
            value = _NOISE_VALUES.get(entry.name, _USUAL).clip
    if value is None:
        return _prose(f"{each.name}: {each.meaning}")
    changed = each.default is not None and value != each.default
    remark = f"  # noise needs this; the default is {_toml(each.default)}" if changed else ""
    taken = each.required or (changed and private)
    return [*_prose(each.meaning), f"{'' if taken else '#'}{each.name} = {_toml(value)}{remark}"]


def _server(entry: CatalogueEntry, built: AnyAlgorithm) -> str:
    try:
        WithServerOptimiser(algorithm=built, optimiser=ServerOptimiser())
    except ParameterError:
        return f"# {entry.name} has no common model to move by an optimiser, and so no table [server].\n\n"
    return _SERVER


def _privacy(entry: CatalogueEntry, *, private: bool) -> str:
    if entry.budget is None:
        return f"# {entry.name} has no private variant, and so no table [privacy].\n\n"
    epsilon = _NOISE_VALUES.get(entry.name, _USUAL).epsilon
    lines = [
        "[privacy]  # noise on every sum: a budget of all rounds together",
        f"epsilon = {epsilon}  # a smaller one hides more, by more noise; or: rho = 1.0, without delta",
        "delta = 1e-5  # chance that more is lost than epsilon says: far below 1 / number of clients",
        "dropouts = 5  # clients of a round that may send nothing",
        "removable = false  # whether noise of those who stayed is taken away again",
        f"#participations = {_PARTICIPATIONS}  # with per_round: most rounds of a client",
        "#min_separation = 1  # rounds between two of them, at least",
    ]
    for each in entry.settings:
        if each.private:
            value = _STEP if each.default is None else each.default
            lines += [*_prose(each.meaning), f"{each.name} = {_toml(value)}"]
    head = _prose(
        "Fewer clients, a smaller epsilon, a larger clip or a larger model mean more noise: secagg simulate "
        "says before the first round whether the run can still learn. Noise also needs what above is marked."
    )
    shown = lines if private else [line if line.startswith("#") else f"#{line}" for line in lines]
    return "\n".join([*head, *shown]) + "\n\n"


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value.value if isinstance(value, Enum) else value}"' if isinstance(value, str) else repr(value)

"""All tests of one kind of sum: its noise, its encoding of inputs, and totals of the real protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import LocalSession, local_machines
from secagg.mask_keystream import SEED_BYTES
from secagg.session_params import SessionParams
from secagg.sum_spec import Part, SumSpec, Table
from secagg.trust_levels import Trust
from sims.console_progress import OnProgress, quiet
from sims.noise_audit import reference_encoding as reference
from sims.noise_audit.alarm_budget import NoiseTest
from sims.noise_audit.faults import Fault
from sims.noise_audit.input_conformance import (
    draw_input,
    roundings_of_inputs,
    sums_of_inputs,
    without_noise,
)
from sims.noise_audit.noise_conformance import NoiseOfPart, noise_of_sums
from sims.noise_audit.noise_statistics import normal_p, quadratic_form_p, variance_p
from sims.noise_audit.unmasked_sums import UnmaskedSums

_DEVIATIONS: Final = 8  # of the noise in a total, which the integers of a test can hold
_MOST_BITS: Final = 64


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How many sums are computed. `present` is how many clients of each; None for all."""

    sums: int  # over zeros
    input_sums: int  # over other inputs
    present: int | None = None


@dataclass(frozen=True)
class Conformance:
    """The tests of one kind of sum."""

    kind: str
    clients: int  # that are asked for a sum
    dropped: int  # of them, clients that drop out
    present: int  # clients whose inputs were added up
    sums: int  # sums over zeros
    input_sums: int  # sums over other inputs
    elements: int  # of all parts with noise
    noise: tuple[NoiseOfPart, ...]  # by part
    inputs: Mapping[str, tuple[NoiseTest, ...]]  # by part

    @property
    def tests(self) -> tuple[NoiseTest, ...]:
        """All tests, with the name of the part if there are several."""
        found: list[NoiseTest] = []
        for each in self.noise:
            named = f"part {each.part}: " if len(self.noise) > 1 else ""
            tests = (*each.tests, *self.inputs[each.part])
            found += [replace(test, subject=f"{named}{test.subject}") for test in tests]
        return tuple(found)


def conformance(
    kind: str,
    spec: SumSpec,
    *,
    clients: int,
    dropped: int = 0,
    effort: Effort,
    fault: Fault = Fault.NONE,
    seed: bytes = bytes(SEED_BYTES),
    progress: OnProgress = quiet,
) -> Conformance:
    """Test the noise and the encoding of one kind of sum, over `clients` clients that are asked, of which the
    last `dropped` drop out. Raise `SpecError` if the noise is not planned for as many."""
    spec = with_room(spec, clients)

    def sums_of(which: SumSpec, purpose: int) -> UnmaskedSums:
        own = bytes(a ^ b for a, b in zip(seed, purpose.to_bytes(SEED_BYTES, "big"), strict=True))
        return UnmaskedSums(
            which, clients=clients, dropped=dropped, present=effort.present, fault=fault, seed=own
        )

    zeros, number = sums_of(spec, 0), int.from_bytes(seed, "big")
    noise = noise_of_sums(zeros, sums=effort.sums, progress=progress)
    inputs = sums_of_inputs(sums_of(spec, 1 << 64), sums=effort.input_sums, seed=number, progress=progress)
    rounding = roundings_of_inputs(
        sums_of(without_noise(spec), 2 << 64), sums=effort.input_sums, seed=number, progress=progress
    )
    return Conformance(
        kind=kind,
        clients=clients,
        dropped=dropped,
        present=zeros.present,
        sums=effort.sums,
        input_sums=effort.input_sums,
        elements=sum(part.width for part in spec.parts if part.noise is not None),
        noise=tuple(noise),
        inputs={name: tuple(tests + rounding[name]) for name, tests in inputs.items()},
    )


def with_room(spec: SumSpec, clients: int) -> SumSpec:
    """Return the spec with so many bits that noise practically never makes a total wrap around. Neither the
    grid nor the noise depends on the bits, and a total that wraps around would look like wrong noise."""
    return replace(spec, parts=tuple(_with_room(spec, part, clients) for part in spec.parts))


def _with_room(spec: SumSpec, part: Part, clients: int) -> Part:
    if part.noise is None or spec.promise is None:
        return part
    noise = math.sqrt(clients * float(sum(spec.promise.components(clients)) * part.noise.variance))
    inputs = clients * float(part.norm2) ** 0.5
    bits = math.ceil(math.log2(_DEVIATIONS * noise + inputs + clients)) + 2
    return replace(part, bits=min(_MOST_BITS, max(part.bits, bits)))


def tests_of_session(spec: SumSpec, *, clients: int, sums: int, seed: int) -> list[NoiseTest]:
    """Compute `sums` sums of random inputs by the real protocol, with its masks, rotations and removal of
    noise. Test the differences between the totals and the sums of the inputs, after clipping."""
    server, machines = local_machines(
        table=Table({"sum": spec}),
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0.2, sums=sums),
        members=range(clients),
    )
    draw = np.random.default_rng([seed, 3])
    (part,) = spec.parts
    sent: dict[int, NDArray[Any]] = {}

    def answer(member: int, _asked: object) -> dict[str, NDArray[Any]]:
        sent[member] = draw_input(part, member % 4, draw, bytes(SEED_BYTES), 0)
        return {part.name: sent[member]}

    session = LocalSession(server, machines, answer)
    session.open()
    differences, lengths = [], []
    for number in range(sums):
        sent.clear()
        total = session.ask("sum", bytes([number]), round_number=number)
        expected = sum(reference.clipped(part, sent[member]) for member in session.contributors)
        difference = (total[part.name] - expected) * part.noise.scale  # type: ignore[union-attr]
        differences.append(difference)
        lengths.append(float((difference * expected).sum() / np.sqrt(np.square(expected).sum())))
    session.end()
    unmasked = UnmaskedSums(spec, clients=clients)
    return _tests_of_differences(np.stack(differences), np.array(lengths), unmasked, part)


def _tests_of_differences(
    found: NDArray[np.float64], lengths: NDArray[np.float64], unmasked: UnmaskedSums, part: Part
) -> list[NoiseTest]:
    """Test the differences `found` of totals (rows), in grid points, and their `lengths` along the inputs."""
    subject, least = "totals of sessions", unmasked.variance(part)
    most = least + unmasked.clients / 4  # the variance of rounding is at most 1/4 for each client
    mean2 = float(np.square(found).mean())
    low, high = (float(variance_p(mean2 / each, found.size)) for each in (least, most))
    p = low if mean2 < least else high if mean2 > most else 1.0
    deviation = math.sqrt(most * found.size)
    # On the bound, each client's vector may be too short by a fraction of a grid point.
    length = max(0.0, abs(float(lengths.mean())) - unmasked.clients / 2) * math.sqrt(len(lengths) / most)
    pairs = found @ found.T / most
    upper = pairs[np.triu_indices(len(found), 1)]
    return [
        NoiseTest(subject, "variance", p, mean2, least),
        NoiseTest(subject, "mean", float(normal_p(float(found.sum()) / deviation)), float(found.mean()), 0.0),
        NoiseTest(subject, "length of all totals", float(normal_p(length)), float(lengths.mean()), 0.0),
        NoiseTest(
            subject,
            "pairs of totals",
            float(min(1.0, quadratic_form_p(upper, found.shape[1]).min() * len(upper))),
        ),
    ]

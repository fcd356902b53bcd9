"""Clients that put residues of their own choice into sums: no clipping holds them, and nobody sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl.attacks.residue_tampering import TAMPERINGS, LargestHonest, Multiply, Wrap, tampering
from fl.errors import TrainingError
from fl.learner_wrapper import generator
from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.learner import Learner
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA
from protocols.rounds import Query
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from secagg.clipping_and_fixed_point import levels
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import ParameterError
from secagg.input_encoding import Encoding
from secagg.mask_keystream import KeyStream
from secagg.residue_packing import Residues
from secagg.sum_spec import L2, Bound, Count, LInf, Part, Residue, SumSpec, Total
from secagg.trust_levels import Trust
from sims.runtime import SessionChannel, Setting, Tamper, insecure_plain_sum, secure_sum
from sims.runtime.residue_tampering import Field, tampered

CLIENTS, DIM, CLIP, BITS, BAD = 6, 4, 10.0, 32, 1
MODULUS, LEVELS = 1 << BITS, levels(BITS, CLIENTS)
CENTRES = 1.0 + 0.1 * np.random.default_rng(2).normal(size=(CLIENTS, DIM))

Make = Callable[[AnyAlgorithm, Mapping[int, Learner], Setting], SessionChannel]
MAKES: list[Make] = [insecure_plain_sum, secure_sum]
BOTH = pytest.mark.parametrize("make", MAKES, ids=["plain", "secure"])
Integers = NDArray[np.int64]

MEAN = FedAvg(dim=DIM, clients=CLIENTS, clip=CLIP, weighted=False)
WEIGHTED = FedAvg(dim=DIM, clients=CLIENTS, clip=CLIP, cap=50)
MEDIAN = RFA(dim=DIM, clients=CLIENTS, steps=3, weighted=False)


def learners() -> dict[int, Learner]:
    return {k: QuadraticLearner(CENTRES[k], samples=10 + k, rate=0.5, steps=2) for k in range(CLIENTS)}


HONEST_UPDATES = np.array([learner.train(np.zeros(DIM)) for learner in learners().values()])


class Listening:
    """A channel that keeps the totals that were released."""

    def __init__(self, channel: SessionChannel) -> None:
        self._channel = channel
        self.totals: list[Total] = []
        self.begin, self.finish = channel.begin, channel.finish

    def ask(self, query: Query) -> Total:
        self.totals.append(self._channel.ask(query))
        return self.totals[-1]


def one_round(make: Make, algorithm: AnyAlgorithm = MEAN, **chosen: Any) -> tuple[list[Total], Vector]:
    """The totals of a round, and the model that it leaves."""
    setting = Setting(**{"insecure_seed": b"tampering"} | chosen)
    listening = Listening(make(algorithm, learners(), setting))
    run = Run(algorithm, listening, algorithm.start(as_vector(np.zeros(algorithm.dim))))
    assert run.round().completed
    return listening.totals, run.model


def bits_of(totals: Sequence[Total]) -> list[Any]:
    return [(total.count, [(name, total[name].tobytes()) for name in total.parts]) for total in totals]


class Watching:
    """Changes nothing, and notes what it was given."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.residues: list[list[int]] = []
        self.fields: tuple[Field, ...] = ()

    def __call__(
        self, kind: str, residues: tuple[Residues, ...], fields: tuple[Field, ...]
    ) -> tuple[Residues, ...]:
        self.kinds.append(kind)
        self.residues = [part.tolist() for part in residues]
        self.fields = fields
        return residues


def grid_points(total: Total) -> Integers:
    """Of the total of all updates, around zero."""
    exact = np.asarray(total["update"]) * (LEVELS / CLIP)
    whole: Integers = np.rint(exact).astype(np.int64)
    assert np.abs(exact - whole).max() < 1e-6
    return whole


def wrapped(points: Integers) -> Integers:
    """In the ring, around zero."""
    return (points + MODULUS // 2) % MODULUS - MODULUS // 2


# --- honest --------------------------------------------------------------------------------------------


def test_a_client_that_changes_nothing_changes_no_bit() -> None:
    watching = Watching()
    honest, _ = one_round(insecure_plain_sum)
    for make in MAKES:
        totals, model = one_round(make, tamper={BAD: watching})
        assert bits_of(totals) == bits_of(honest)
        assert model == pytest.approx(HONEST_UPDATES.mean(axis=0), abs=2 * CLIP / LEVELS)
        assert watching.fields == (Field("update", BITS, most=LEVELS, norm=LEVELS),)
        (own,) = watching.residues
        assert wrapped(np.array(own)) == pytest.approx(HONEST_UPDATES[BAD] * LEVELS / CLIP, abs=1)
    assert watching.kinds == ["update", "update"]


@BOTH
@pytest.mark.parametrize("trust", list(Trust))
def test_tampering_needs_no_seed_and_is_not_noticed(make: Make, trust: Trust) -> None:
    (total,), model = one_round(make, trust=trust, insecure_seed=None, tamper={BAD: Multiply(factor=30)})
    assert total.count == total.invited == CLIENTS
    expected = (HONEST_UPDATES.sum(axis=0) + 29 * HONEST_UPDATES[BAD]) / CLIENTS
    assert model == pytest.approx(expected, abs=40 * CLIP / LEVELS)


# --- both channels ---------------------------------------------------------------------------------------

ATTACKS: dict[str, dict[str, Any]] = {
    "overflow": {},
    "wrap": {},
    "largest-honest": {},
    "multiply": {"factor": 30},
}


@pytest.mark.parametrize("name", TAMPERINGS)
@pytest.mark.parametrize("algorithm", [MEAN, WEIGHTED, MEDIAN], ids=["mean", "weighted", "median"])
def test_totals_are_the_same_bits_over_both_channels(name: str, algorithm: AnyAlgorithm) -> None:
    part = algorithm.sums()[0].spec.parts[0].name
    results = [
        one_round(make, algorithm, tamper=tampering(name, {1, 4}, 3, parts=[part], **ATTACKS[name]))
        for make in MAKES
    ]
    (plain, model), (secure, secure_model) = results
    assert bits_of(plain) == bits_of(secure)
    assert model.tobytes() == secure_model.tobytes()
    honest, _ = one_round(insecure_plain_sum, algorithm)
    assert plain[0][part].tobytes() != honest[0][part].tobytes()
    others = [each for each in honest[0].parts if each != part]
    assert [plain[0][each].tobytes() for each in others] == [honest[0][each].tobytes() for each in others]


def test_all_parts_are_changed_unless_some_are_named() -> None:
    honest, _ = one_round(insecure_plain_sum, WEIGHTED)
    (total,), _ = one_round(insecure_plain_sum, WEIGHTED, tamper={BAD: Multiply(factor=2)})
    assert int(total["weight"][0]) == int(honest[0]["weight"][0]) + 10 + BAD


# --- what becomes of a mean ------------------------------------------------------------------------------


def attacked(make: Make, tamper: Tamper) -> tuple[Integers, Integers, Integers, Vector]:
    """Grid points of the honest total, of the attacker's own update and of the total; and the model."""
    watching = Watching()
    (honest,), _ = one_round(make, tamper={BAD: watching})
    (total,), model = one_round(make, tamper={BAD: tamper})
    return grid_points(honest), wrapped(np.array(watching.residues[0])), grid_points(total), model


@BOTH
def test_half_the_modulus_throws_a_total_to_the_far_end(make: Make) -> None:
    honest, own, total, model = attacked(make, Wrap())
    assert (honest - own > 0).all()
    assert total.tolist() == (honest - own - MODULUS // 2).tolist()
    assert (model < -0.8 * CLIP).all()  # every coordinate; no honest model could be so far from zero


@BOTH
def test_two_halves_cancel(make: Make) -> None:
    (total,), _ = one_round(make, tamper=tampering("wrap", {0, 1}, 0))
    expected = HONEST_UPDATES[2:].sum(axis=0) * LEVELS / CLIP
    assert grid_points(total) == pytest.approx(expected, abs=CLIENTS)


@BOTH
def test_uniform_residues_leave_nothing_of_a_total(make: Make) -> None:
    honest, own, total, model = attacked(make, tampering("overflow", {BAD}, 3)[BAD])
    drawn = generator("overflow", 3, BAD).integers(0, MODULUS, DIM, np.uint64).astype(np.int64)
    assert total.tolist() == wrapped(honest - own + drawn).tolist()
    assert np.linalg.norm(model - HONEST_UPDATES.mean(axis=0)) > CLIP / 2


@BOTH
@pytest.mark.parametrize("factor", [30, -30, 1 << 20, -(1 << 40) + 7])
def test_a_multiple_of_an_update_counts_unclipped_until_it_wraps(make: Make, factor: int) -> None:
    honest, own, total, model = attacked(make, Multiply(factor=factor))
    exact = [int(a) + (factor - 1) * int(b) for a, b in zip(honest, own, strict=True)]
    assert total.tolist() == [(each + MODULUS // 2) % MODULUS - MODULUS // 2 for each in exact]
    if abs(factor) == 30:
        assert (
            np.linalg.norm(total - honest) * CLIP / LEVELS > 4 * CLIP
        )  # one client, and four times its bound
        assert model == pytest.approx(np.array(exact) * CLIP / LEVELS / CLIENTS)


@BOTH
def test_the_largest_honest_update_moves_a_mean_by_its_bound(make: Make) -> None:
    honest, own, total, _ = attacked(make, LargestHonest())
    put = (total - honest + own) * CLIP / LEVELS
    assert CLIP - 1e-6 < np.linalg.norm(put) <= CLIP
    assert np.ptp(put) == 0


def test_a_median_falls_as_a_mean_does() -> None:
    """One client of six. Were it to lie about its model alone, it would move the median by little."""
    direction = MEDIAN.sums()[0].spec.parts[0].name
    goal = np.linalg.norm(CENTRES.mean(axis=0))
    _, lied = one_round(insecure_plain_sum, MEDIAN, tamper={BAD: LargestHonest(parts=[direction])})
    _, forged = one_round(
        insecure_plain_sum, MEDIAN, tamper={BAD: Multiply(factor=-(CLIENTS**2), parts=[direction])}
    )
    assert np.linalg.norm(lied - CENTRES.mean(axis=0)) < 0.5 * goal
    assert np.linalg.norm(forged - CENTRES.mean(axis=0)) > 2 * goal


# --- what a client knows of a sum ------------------------------------------------------------------------


def spec_of(bound: Bound, noise: Noise | None = None, size: int = 3, bits: int = 40) -> SumSpec:
    promise = None if noise is None else NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0)
    return SumSpec(parts=(Part(name="x", size=size, bits=bits, bound=bound, noise=noise),), promise=promise)


COARSE = Noise(scale=64, variance=Fraction(64**2))
KNOWN: list[tuple[Bound, Noise | None, dict[str, int], list[int]]] = [
    (L2(5.0), None, {"most": levels(40, CLIENTS), "norm": levels(40, CLIENTS)}, []),
    (LInf(5.0), None, {"most": levels(40, CLIENTS)}, [levels(40, CLIENTS)] * 3),
    (Count(9), None, {"most": 9}, [9, 9, 9]),
    (Count(9, 13), None, {"most": 9, "total": 13}, [9, 4, 0]),
    (Residue(), None, {"most": (1 << 40) - 1}, [(1 << 40) - 1] * 3),
    (L2(5.0), COARSE, {"most": 320, "norm": 320}, [160] * 4),  # rotated, so padded to four
    (LInf(5.0), COARSE, {"most": 320}, [320] * 3),
    (Count(2, 3), COARSE, {"most": 128, "total": 192}, [128, 64, 0]),
]


@pytest.mark.parametrize(("bound", "noise", "known", "largest"), KNOWN)
def test_fields_tell_what_an_honest_client_may_reach(
    bound: Bound, noise: Noise | None, known: dict[str, int], largest: list[int]
) -> None:
    encoding, watching = Encoding(spec_of(bound, noise), cohort=CLIENTS), Watching()
    before = encoding.zeros()
    after = tampered(watching, "x", encoding, before)
    assert watching.fields == (Field("x", 40, **known),)
    assert [part.tolist() for part in after] == [part.tolist() for part in before]
    (changed, _) = tampered(LargestHonest(), "x", encoding, before)
    if largest:
        assert changed.tolist() == largest


@pytest.mark.parametrize("bound", [L2(5.0), LInf(5.0), Count(9)])
def test_largest_honest_residues_are_what_the_largest_values_come_to(bound: Bound) -> None:
    encoding = Encoding(spec_of(bound), cohort=CLIENTS)
    values = {"x": np.full(3, 9) if isinstance(bound, Count) else np.full(3, 1e9)}
    encoded = encoding.encode(values, KeyStream(bytes(32))).residues
    changed = tampered(LargestHonest(), "x", encoding, encoded)
    assert changed[0].astype(np.int64) == pytest.approx(encoded[0].astype(np.int64), abs=1)
    assert changed[0] is not encoded[0]
    assert changed[1].tolist() == [1]


def test_residues_are_reduced_to_their_bits() -> None:
    encoding = Encoding(spec_of(Residue(), bits=5), cohort=CLIENTS)
    whole = np.array([33, 31, 64], np.uint64)
    changed, count = tampered(
        lambda *_: [whole], "x", encoding, (*encoding.zeros()[:1], np.ones(1, np.uint64))
    )
    assert (changed.tolist(), changed.dtype.name, count.tolist()) == ([1, 31, 0], "uint8", [1])
    drawn, _ = tampered(tampering("overflow", {0}, 1)[0], "x", encoding, encoding.zeros())
    assert drawn.max() < 32


@pytest.mark.parametrize("bits", [1, 31, 64])
def test_uniform_residues_fill_the_ring(bits: int) -> None:
    encoding = Encoding(spec_of(Residue(), size=1000, bits=bits), cohort=CLIENTS)
    drawn, _ = tampered(tampering("overflow", {0}, 1)[0], "x", encoding, encoding.zeros())
    top = (drawn >> (bits - 1)).astype(np.int64)
    assert top.mean() == pytest.approx(0.5, abs=0.08)
    assert set(top.tolist()) == {0, 1}


# --- what cannot be --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "wrong", [lambda *_: [], lambda *_: [np.zeros(DIM + 1, np.uint64)], lambda *_: [np.zeros((1, DIM))]]
)
def test_residues_that_do_not_fit_are_refused(make: Make, wrong: Tamper) -> None:
    algorithm = MEAN
    channel = make(algorithm, learners(), Setting(tamper={BAD: wrong}))
    with pytest.raises(ParameterError, match="as many residues of every part as it was given"):
        Run(algorithm, channel, algorithm.start(as_vector(np.zeros(DIM)))).round()


@BOTH
def test_clients_that_do_not_exist_cannot_tamper(make: Make) -> None:
    with pytest.raises(ParameterError, match=r"cannot tamper: \[7, 9\]"):
        make(MEAN, learners(), Setting(tamper=tampering("wrap", {1, 9, 7}, 0)))


def test_tampering_that_is_unknown() -> None:
    with pytest.raises(TrainingError, match=r"no tampering 'lie'\. Available: overflow, wrap"):
        tampering("lie", {1}, 0)
    with pytest.raises(TrainingError, match=r"factor must be a whole number, not 0\.5"):
        Multiply(factor=0.5)  # type: ignore[arg-type]


def test_every_client_draws_residues_of_its_own() -> None:
    field, own = Field("x", 64, most=1), (np.zeros(5, np.uint64),)
    made = tampering("overflow", {1, 2}, 3)
    (first,), (second,), (again,) = (made[k]("x", own, (field,)) for k in (1, 2, 1))
    assert len({each.tobytes() for each in (first, second, again)}) == 3
    (repeated,) = tampering("overflow", {1}, 3)[1]("x", own, (field,))
    assert repeated.tolist() == first.tolist()


def test_a_setting_can_still_be_a_key() -> None:
    assert len({Setting(sums=3): 0, Setting(sums=3): 1, Setting(sums=4): 2}) == 2

"""A seeded client that writes down what it must never show: its secrets, and its input before masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg import residue_packing
from secagg.clipping_and_fixed_point import checked
from secagg.cohort_members import CohortView
from secagg.events import Answer, ClientStep
from secagg.hybrid_keys import Encapsulation, KemKey, encapsulate, mask_key_of
from secagg.keys import Agreement, Random, pair_info, self_mask_seed
from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import discrete_gaussian
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.sum_spec import Part, SumSpec
from secagg.testing import InsecureSeededClient


def arrays(values: Mapping[str, list[Any]]) -> dict[str, ArrayLike]:
    """`values` for a machine: left to itself, numpy turns a mix of small and large integers into floats."""
    whole = {name: all(isinstance(value, int) for value in row) for name, row in values.items()}
    return {name: np.array(row, np.uint64 if whole[name] else np.float64) for name, row in values.items()}


class Drawn:
    """Randomness that remembers what it gave last."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.last = b""

    def __call__(self, count: int) -> bytes:
        self.last = self._random(count)
        return self.last


class Encapsulations:
    """Encapsulates as it did before, for the KEM keys in `known`, and notes what it gave. The library has no
    seeds for encapsulation, so that it is random for a new key."""

    def __init__(self, known: Mapping[bytes, Encapsulation]) -> None:
        self._known = known
        self.given: dict[bytes, Encapsulation] = {}

    def __call__(self, public: bytes) -> Encapsulation:
        self.given[public] = self._known.get(public) or encapsulate(public)
        return self.given[public]


def recorded_encapsulations(clients: Mapping[str, Any], member: int) -> dict[bytes, Encapsulation]:
    """What client `member` of a transcript encapsulated, by the KEM keys. `clients` are those of the file."""
    rows = clients.get(str(member), {}).get("encapsulations", {})
    return {
        KemKey(bytes.fromhex(clients[receiver]["kem_seed"])).public(): Encapsulation(
            bytes.fromhex(row["secret"]), bytes.fromhex(row["ciphertext"])
        )
        for receiver, row in rows.items()
    }


class RecordingClient(InsecureSeededClient):
    """Notes its secrets when they are fresh, what it deals, and its residues as they were before they were
    masked. `known` are encapsulations that it uses again."""

    def __init__(self, *, known: Mapping[bytes, Encapsulation], **settings: Any) -> None:
        super().__init__(**settings)
        self._drawn = Drawn(self._hooks.random)
        self._encapsulations = Encapsulations(known)
        self._hooks = replace(self._hooks, random=self._drawn, encapsulate=self._encapsulations)
        self.dealt: list[bytes] = []  # what it deals to each holder, in their order
        self.inputs: dict[int, dict[str, Any]] = {}
        self.questions: dict[int, Question] = {}

    def secrets(self) -> dict[str, Any]:
        """The one-time secrets of the session; they exist from the invitation to their first use."""
        vault = self._vault
        noise = [[seed.hex() for seed in seeds] for seeds in vault._noise.values()]
        kem = {} if vault._kem is None else {"kem_seed": vault._kem._private.private_bytes_raw().hex()}
        return {
            "channel": vault._channel.hex(),
            **kem,
            "mask_keys": [key.hex() for key in vault._mask_keys.values()],
            "self_masks": [seed.hex() for seed in vault._self_masks.values()],
            **({"noise_seeds": noise} if self._table.seeds else {}),
        }

    def encapsulations(self) -> dict[str, Any]:
        """What it encapsulated, by the id of the receiver. It exists from the list of keys on."""
        adverts = [self._cohort.adverts[position] for position in self._cohort.neighbourhood]
        receivers = {advert.kem_key: advert.member for advert in adverts}
        return {
            str(receivers[key]): {"secret": made.secret.hex(), "ciphertext": made.ciphertext.hex()}
            for key, made in self._encapsulations.given.items()
        }

    def lies(self) -> dict[str, Any]:
        """What is false in what it deals: nothing, if it is honest."""
        return {}

    def _enter_cohort(self, cohort: CohortView) -> ClientStep:
        deal = self._vault.deal

        def noted(*, threshold: int, holders: int) -> list[bytes]:
            self.dealt = deal(threshold=threshold, holders=holders)
            return self.dealt

        self._vault.deal = noted  # type: ignore[method-assign]
        return super()._enter_cohort(cohort)

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        question = self._question
        assert question is not None
        seeds, streams = self._seeds(question), self._streams(question)
        answer = super().answer(sum_index, values)
        # The same values, encoded once more with the randomness that was drawn for it, are not masked yet.
        own, noise = KeyStream(self._drawn.last), [KeyStream(seed) for seed in streams]
        *residues, _count = question.encoding.encode(values, own, noise=noise).residues
        for part, row in zip(question.spec.parts, residues, strict=True):
            residue_packing.reduce(row, part.bits)
        self.questions[sum_index] = question
        self.inputs[sum_index] = {
            "residues": _by_name(question.spec.parts, residues),
            **(self._before_noise(question, values, streams) if question.spec.promise else {}),
            "seeds": seeds,
        }
        return answer

    def _seeds(self, question: Question) -> dict[str, str]:
        """The seed of the mask shared with each client of the roster that is a neighbour; under our own id,
        of the self mask.
        """
        session, context = question.cohort.session, question.mask_context
        dealt = self._vault._mask_keys[question.sum_index]
        agreement = Agreement(mask_key_of(dealt, self._policy.key_agreement))
        pair_secrets = self._vault._pair_secrets[question.sum_index]
        secret = self._vault._self_masks[question.sum_index]
        own = self_mask_seed(secret, session=session, context=context, owner=self.member)
        seeds = {}
        around = [position for position in question.cohort.neighbourhood if position in question.roster]
        for position in around:
            peer = question.cohort.adverts[position]
            info = pair_info(context, self.member, peer.member)
            key, more = peer.mask_keys[question.sum_index], pair_secrets.get(position, b"")
            pair = agreement.derive(key, salt=session, info=info, more=more)
            seeds[str(peer.member)] = (own if peer.member == self.member else pair).hex()
        return seeds

    def _streams(self, question: Question) -> list[bytes]:
        """The seeds of the key streams of the removable components."""
        secrets = self._vault.noise_seeds(question.sum_index)[: question.spec.seeds]
        return [question.noise_seed(s, self._position, layer) for layer, s in enumerate(secrets, start=1)]

    def _before_noise(
        self, question: Question, values: Mapping[str, ArrayLike], streams: Sequence[bytes]
    ) -> dict[str, Any]:
        """What residues are made of: whole numbers, the noise that stays, and noise from streams."""
        spec, own = question.spec, KeyStream(self._drawn.last)
        codes = zip(spec.parts, question.encoding._codes, strict=True)
        rounded = [code.encode(checked(part, values[part.name]), own)[0] for part, code in codes]
        noisy = [part for part in spec.parts if part.noise]
        signed = [_signed(row, part) for part, row in zip(spec.parts, rounded, strict=True) if part.noise]
        return {
            "rounded": _by_name(noisy, signed),
            "noise": _by_name(noisy, _staying_noise(spec, len(question.roster), own)),
            "noise_streams": [seed.hex() for seed in streams],
        }


def _by_name(parts: Sequence[Part], rows: Sequence[NDArray[Any]]) -> dict[str, list[Any]]:
    return {part.name: row.tolist() for part, row in zip(parts, rows, strict=True)}


def _signed(residues: Residues, part: Part) -> NDArray[np.int64]:
    """Counts are never below zero; reals are around it."""
    unused = 0 if part.counts else 64 - part.bits
    top = residues.astype(np.uint64) << np.uint64(unused)
    return top.view(np.int64) >> unused


def _staying_noise(spec: SumSpec, roster: int, stream: KeyStream) -> list[NDArray[np.int64]]:
    """Component 0 of every part, from a stream that has done the rounding already."""
    assert spec.promise is not None
    share = spec.promise.components(roster)[0]
    return [
        discrete_gaussian(part.noise.variance * share).sample(stream, part.width)
        for part in spec.parts
        if part.noise
    ]


def unmasked_total(question: Question, clients: Sequence[RecordingClient]) -> dict[str, list[int]]:
    """The residues that a server is left with, from those of the clients and without surplus noise."""
    index, layers, surplus = question.sum_index, question.encoding.noise(), question.surplus(len(clients))
    total = question.encoding.zeros()
    for row in (client.inputs[index] for client in clients):
        for part, acc in zip(question.spec.parts, total, strict=False):
            acc += np.array(row["residues"][part.name], acc.dtype)
        for layer in surplus:
            layers.remove(layer, total, KeyStream(bytes.fromhex(row["noise_streams"][layer - 1])))
    for part, acc in zip(question.spec.parts, total, strict=False):
        residue_packing.reduce(acc, part.bits)
    return _by_name(question.spec.parts, total[:-1])

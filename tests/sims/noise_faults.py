"""Mistakes in the real code of clients and server, patched in for a while, which tests of noise must find."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest

from secagg.clipping_and_fixed_point import clip, rounded
from secagg.mask_keystream import KeyStream
from secagg.noise import grid_encoding
from secagg.noise.gaussian import DiscreteGaussian, Layers, discrete_gaussian
from secagg.noise.grid_encoding import NoisyCounts, NoisyReals
from secagg.noise.hadamard_rotation import Rotation
from secagg.residue_packing import dtype_for

Patch = Callable[[pytest.MonkeyPatch, int], None]  # the second argument is the number of clients
_ADD: Final = Layers.add_to


def _noise(change: Callable[[int, list[Any], list[list[Any]]], list[Any]]) -> Patch:
    """Return a patch that replaces a client's noise by `change(calls before, own noise, earlier noise)`."""

    def patch(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
        earlier: list[list[Any]] = []

        def add_to(self: Layers, residues: Any, streams: Any) -> None:
            own = [np.zeros_like(part) for part in residues]
            _ADD(self, own, streams)
            alike = [each for each in earlier if [len(a) for a in each] == [len(a) for a in own]]
            own = change(len(alike), own, alike)
            earlier.append(own)
            for part, noise in zip(residues, own, strict=True):
                part += noise

        monkeypatch.setattr(Layers, "add_to", add_to)

    return patch


def _of_clients(change: Callable[[int, int, list[Any], list[list[Any]]], list[Any]]) -> Patch:
    """Do the same with `change(clients, calls before, own noise, earlier noise)`."""
    return lambda monkeypatch, clients: _noise(lambda *known: change(clients, *known))(monkeypatch, clients)


def _cut(own: list[Any], start: int, stop: int | None) -> list[Any]:
    for part in own:
        part[start:stop] = 0
    return own


def _repeated(own: list[Any]) -> list[Any]:
    for part in own:
        half = len(part) // 2
        part[half : 2 * half] = part[:half]
    return own


def _mirrored(own: list[Any]) -> list[Any]:
    for part in own:
        half = len(part) // 2
        part[len(part) - half :] = -part[:half][::-1]
    return own


def _laws(variance: Callable[[Fraction], Fraction]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
        def laws(self: Layers, layer: int, residues: Any) -> Any:
            for part, values in zip(self._spec.parts, residues, strict=False):
                if part.noise is not None:
                    yield values, discrete_gaussian(variance(part.noise.variance * self._shares[layer]))

        monkeypatch.setattr(Layers, "_laws", laws)

    return patch


def _samples(change: Callable[[Any, float], Any]) -> Patch:
    """Return a patch that changes blocks of samples, which have this variance."""
    real = DiscreteGaussian._blocks

    def patch(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
        def blocks(self: DiscreteGaussian, stream: Any, size: int) -> Any:
            for window, block in real(self, stream, size):
                yield window, change(block, float(self.variance))

        monkeypatch.setattr(DiscreteGaussian, "_blocks", blocks)

    return patch


def _rounding(change: Callable[[Any], Any]) -> Patch:
    return lambda monkeypatch, _: monkeypatch.setattr(
        grid_encoding, "rounded", lambda values, _stream: change(values).astype(np.int64)
    )


def _biased(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
    """A rounding that is rounded up a little too often."""
    monkeypatch.setattr(
        grid_encoding, "rounded", lambda values, stream: rounded(values + 0.02 * (values % 1 > 0), stream)
    )


def _unchecked(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
    """Return roundings whatever their norm is."""

    def once(self: NoisyReals, vector: Any, stream: KeyStream) -> Any:
        out: Any = np.empty(self._part.width, dtype_for(self._part.bits))
        self._write(vector, out, stream)
        return out

    monkeypatch.setattr(NoisyReals, "_rounded", once)


def _clip(factor: float) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch, clients: int) -> None:
        monkeypatch.setattr(
            grid_encoding, "clip", lambda array, bound: clip(array, type(bound)(bound.limit * factor))
        )
        _unchecked(monkeypatch, clients)

    return patch


def _other_signs(which: str) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
        real = getattr(Rotation, which)

        def turned(self: Rotation, vector: Any) -> None:
            seed, self._seed = self._seed, self._seed[::-1]
            real(self, vector)
            self._seed = seed

        monkeypatch.setattr(Rotation, which, turned)

    return patch


def _no_rotation(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
    def scaled(self: Rotation, vector: Any) -> None:
        vector /= self.factor

    monkeypatch.setattr(Rotation, "apply", scaled)
    monkeypatch.setattr(Rotation, "undo", scaled)


def _counts_unscaled(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
    real = NoisyCounts.encode

    def encode(self: NoisyCounts, array: Any, stream: KeyStream) -> Any:
        out, factor = real(self, array, stream)
        return out // out.dtype.type(int(self.scale)), factor

    monkeypatch.setattr(NoisyCounts, "encode", encode)


def _counts_never_negative(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
    real = NoisyCounts.decode
    monkeypatch.setattr(
        NoisyCounts, "decode", lambda self, total, buffer: np.maximum(real(self, total, buffer), 0.0)
    )


def _removed_wrongly(monkeypatch: pytest.MonkeyPatch, _clients: int) -> None:
    """The server adds surplus noise again instead of removing it."""
    monkeypatch.setattr(DiscreteGaussian, "subtract_from", DiscreteGaussian.add_to)


def _wide(block: Any, variance: float) -> Any:
    most = round(2.5 * variance**0.5)
    return np.clip(block, -most, most)


REALS: Final[dict[str, Patch]] = {
    "no noise above 64 elements": _noise(lambda _, own, __: _cut(own, 64, None)),
    "no noise on one element": _noise(lambda _, own, __: _cut(own, 20, 21)),
    "no noise on a run of elements": _noise(lambda _, own, __: _cut(own, 30, 40)),
    "noise times 0.95": _laws(lambda variance: variance * Fraction(9025, 10000)),
    "variance times 0.95": _laws(lambda variance: variance * Fraction(95, 100)),
    "too much noise": _laws(lambda variance: variance * Fraction(105, 100)),
    "no noise of one client": _of_clients(
        lambda clients, calls, own, _: _cut(own, 0, None) if calls % clients == clients - 1 else own
    ),
    "no noise in one sum": _of_clients(
        lambda clients, calls, own, _: _cut(own, 0, None) if calls // clients == 1 else own
    ),
    "two clients share noise": _of_clients(
        lambda clients, calls, own, earlier: earlier[-1] if calls % clients == 2 else own
    ),
    "one client has another's shifted": _of_clients(
        lambda clients, calls, own, earlier: (
            [np.roll(each, 5) for each in earlier[-1]] if calls % clients == 1 else own
        )
    ),
    "noise of the sum before": _of_clients(
        lambda clients, calls, own, earlier: earlier[-clients] if calls // clients % 2 else own
    ),
    "opposite noise of the sum before": _of_clients(
        lambda clients, calls, own, earlier: (
            [-each for each in earlier[-clients]] if calls // clients % 2 else own
        )
    ),
    "noise of three sums before": _of_clients(
        lambda clients, calls, own, earlier: earlier[-3 * clients] if calls // clients == 3 else own
    ),
    "half of the noise of the client before": _of_clients(
        lambda clients, calls, own, earlier: (
            [
                np.concatenate([a[: len(a) // 2], b[len(a) // 2 :]])
                for a, b in zip(own, earlier[-1], strict=True)
            ]
            if calls % clients == 3
            else own
        )
    ),
    "second half repeats the first": _noise(lambda _, own, __: _repeated(own)),
    "second half mirrors the first": _noise(lambda _, own, __: _mirrored(own)),
    "only even samples": _samples(lambda block, _: block // 2 * 2),
    "samples never negative": _samples(lambda block, _: np.abs(block)),
    "samples one too large": _samples(lambda block, _: block + (block == 0)),
    "samples cut at 2.5 deviations": _samples(_wide),
    "no clipping and no check": _clip(1e30),
    "clipped at 1.2 times the bound": _clip(1.2),
    "rounded down": _rounding(np.floor),
    "rounded to zero": _rounding(np.trunc),
    "rounded to the nearest": _rounding(np.rint),
    "rounded away from zero": _rounding(
        lambda values: np.where(values < 0, np.floor(values), np.ceil(values))
    ),
    "rounded up too often": _biased,
    "client rotates by other signs": _other_signs("apply"),
    "server rotates by other signs": _other_signs("undo"),
    "no rotation": _no_rotation,
}
CHECKED: Final[dict[str, Patch]] = {"no check of the norm": _unchecked}
COUNTS: Final[dict[str, Patch]] = {
    "counts without their scale": _counts_unscaled,
    "decoded counts never negative": _counts_never_negative,
}
REMOVED: Final[dict[str, Patch]] = {"removed noise is added": _removed_wrongly}
ALL: Final = {**REALS, **CHECKED, **COUNTS, **REMOVED}

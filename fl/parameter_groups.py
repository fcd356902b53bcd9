"""Groups of a model's parameters, such as shared and personal ones, selected by patterns of their names.

Patterns are shell patterns: `head.*` matches all names that start with `head.`, and `*.norm[12].*` matches
`norm1` and `norm2` of every block. A group is a set of indices of the flat vector of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from torch import nn

from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.flat_model import ParameterSlice, parameter_slices
from fl.models.registry import MODELS
from fl.samples import Array


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of the indices of a flat vector into named groups.

    `dim`     length of the vector.
    `slices`  by name of a group, its slices of the vector, in order; adjacent slices are joined.
    """

    dim: int
    slices: Mapping[str, tuple[slice, ...]]

    @classmethod
    def of(
        cls, module: nn.Module, patterns: Mapping[str, str | Sequence[str]], *, rest: str | None = "shared"
    ) -> Groups:
        """Return groups of the parameters of `module`. `patterns` has each group's patterns, by group name.
        The group `rest` gets the unmatched parameters; if it is None, there must be none. Raise
        `TrainingError` if a pattern matches nothing, a parameter is in two groups, or `rest` gets nothing."""
        if rest in patterns:
            raise TrainingError(f"{rest!r} is the name of the remaining group: rename the other group")
        slots = parameter_slices(module)
        names = [slot.name for slot in slots]
        owner: dict[str, str] = {}
        for group, chosen in patterns.items():
            for name in _matching(group, chosen, names):
                if name in owner:
                    raise TrainingError(
                        f"{name} is both in {owner[name]!r} and in {group!r}: narrow a pattern"
                    )
                owner[name] = group
        left = [name for name in names if name not in owner]
        if rest is None and left:
            raise TrainingError(f"no group has {', '.join(left)}: add a pattern, or set a name for the rest")
        if rest is not None:
            if not left:
                raise TrainingError(f"nothing is left for {rest!r}: narrow a pattern, or set rest=None")
            owner.update(dict.fromkeys(left, rest))
        groups = (*patterns, *(() if rest is None else (rest,)))
        return cls(slots[-1].stop, {group: _slices(slots, owner, group) for group in groups})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.slices)

    def size(self, name: str) -> int:
        """Return the number of parameters in the group called `name`."""
        return sum(each.stop - each.start for each in self._of(name))

    def mask(self, name: str) -> Array:
        """Return a boolean vector of length `dim` that is true at the indices of the group `name`."""
        mask = np.zeros(self.dim, dtype=bool)
        for each in self._of(name):
            mask[each] = True
        return mask

    def take(self, vector: Array, name: str) -> Array:
        """Return a copy of the values of the group `name` in `vector`. If `vector` is a stack of vectors
        (rows), the result has a row for each."""
        self._check(vector)
        return np.concatenate([vector[..., each] for each in self._of(name)], axis=-1)

    def put(self, vector: Array, name: str, values: Array) -> Array:
        """Return a copy of the vector, or stack of vectors, with `values` at the indices of group `name`."""
        self._check(vector)
        wanted = (*vector.shape[:-1], self.size(name))
        if values.shape != wanted:
            raise TrainingError(f"{name!r} takes values of shape {wanted}, not {values.shape}")
        changed, start = vector.copy(), 0
        for each in self._of(name):
            stop = start + each.stop - each.start
            changed[..., each] = values[..., start:stop]
            start = stop
        return changed

    def _of(self, name: str) -> tuple[slice, ...]:
        if name not in self.slices:
            raise unknown_name("group", name, self.slices, parameter="name")
        return self.slices[name]

    def _check(self, vector: Array) -> None:
        if vector.shape[-1:] != (self.dim,):
            raise TrainingError(f"a model of {self.dim} parameters has no vector of shape {vector.shape}")


def _matching(group: str, patterns: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """Return those parameter names in `names` that match one of the patterns of `group`, in order. Raise
    `TrainingError` if there is no pattern, or if a pattern matches no name."""
    patterns = (patterns,) if isinstance(patterns, str) else patterns
    if not patterns:
        raise TrainingError(f"group {group!r} has no pattern: give it one, or leave it out")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise TrainingError(f"pattern {pattern!r} of {group!r} matches none of {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _slices(slots: Iterable[ParameterSlice], owner: Mapping[str, str], group: str) -> tuple[slice, ...]:
    slices: list[slice] = []
    for slot in slots:
        if owner[slot.name] != group:
            continue
        start = slices.pop().start if slices and slices[-1].stop == slot.start else slot.start
        slices.append(slice(start, slot.stop))
    return tuple(slices)


_Layers: TypeAlias = Mapping[str, tuple[str, ...]]
_OUTPUT: Final[_Layers] = {"output": ("output.*",)}
_BOTH_ENDS: Final[_Layers] = {"input": ("input.*",), **_OUTPUT}
# The layers that "Federated Learning with Partial Model Personalization" makes personal. With
# adapters, they include all norms except those of projections.
_ADAPTER: Final = ("*.adapter[12].*", "*.norm[12].*", "input.norm.*")
_LAYERS: Final[Mapping[str, _Layers]] = MappingProxyType(
    {
        "linear": _OUTPUT,
        "softmax": _OUTPUT,
        "additive": {"shared": ("shared.*",), "personal": ("personal.*",)},
        "mlp": _BOTH_ENDS,
        "cnn-mnist": _BOTH_ENDS,
        "cnn-cifar": _BOTH_ENDS,
        "rfa-convnet": _BOTH_ENDS,
        "convnet": _BOTH_ENDS,
        "lenet": _BOTH_ENDS,
        "resnet": {**_BOTH_ENDS, "adapter": _ADAPTER},
        "char-lstm": _BOTH_ENDS,
    }
)


def layer_groups(model: str) -> _Layers:
    """Return, by part of `model` such as "output", name patterns of the parameters that papers make personal.

    Use one part at a time, as in `Groups.of(module, {"personal": layer_groups("resnet")["output"]})`, because
    the parts "input" and "adapter" of a residual network overlap. "adapter" is for networks with adapters.
    For a model added by `fl.models.register`, return {}. Raise `TrainingError` for an unknown model.
    """
    if model not in MODELS:
        raise unknown_name("model", model, MODELS, parameter="model")
    return _LAYERS.get(model, {})

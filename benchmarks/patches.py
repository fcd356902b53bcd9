"""Temporarily replaces functions of a package in every module that imported them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any, Self, TypeAlias

Function: TypeAlias = Callable[..., Any]
Wrap: TypeAlias = Callable[[Function], Function]


class Patches(ExitStack):
    """A context that restores every original at its end."""

    def __enter__(self) -> Self:
        return super().__enter__()

    def replace(self, owner: type | ModuleType, name: str, wrap: Wrap) -> None:
        """Replace `owner.name` by `wrap(original)`, in every module that imported it."""
        original: Function = vars(owner)[name]
        wrapped = wrap(original)
        holders = [owner] if isinstance(owner, type) else _importers(owner, original)
        for holder in holders:
            for attribute in [key for key, value in vars(holder).items() if value is original]:
                setattr(holder, attribute, wrapped)
                self.callback(setattr, holder, attribute, original)


def _importers(owner: ModuleType, original: Function) -> list[ModuleType]:
    """Return the modules of the owner's package that hold `original` under any name."""
    package = owner.__name__.partition(".")[0]
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{package}.")]
    return [module for module in modules if any(value is original for value in vars(module).values())]

"""What the parameters of an algorithm mean, as the documentation of its class says.

    `clip`      largest norm of an update.
    `weighted`  whether clients count by their samples,
                up to `cap`.

Lines like these are read, of a class and of those that it is made from.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Final

_ENTRY: Final = re.compile(r"^((?:`\w+`(?:, )?)+) {1,}(?=\S)(.*)$")
_FULL_STOP: Final = "."

# What is said once, where it is first needed.
_COMMON: Final[Mapping[str, str]] = {
    "bits": "of every number of a vector on the wire",
    "cap": "samples beyond which a client counts no more",
    "tolerance": "a step that moves by no more than this is the last one; 0 takes all steps",
    "median_steps": "sums that the geometric median takes",
    "nu": "smoothing: within this distance of a client, distances count squared",
}


def meanings_of(kind: object) -> Mapping[str, str]:
    """The meaning of each parameter, by its name."""
    found: dict[str, str] = {}
    for each in inspect.getmro(kind) if inspect.isclass(kind) else ():
        for name, meaning in _read(inspect.cleandoc(each.__doc__ or "")).items():
            found.setdefault(name, meaning)
    return dict(_COMMON) | found


def _read(text: str) -> Mapping[str, str]:
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            names = re.findall(r"`(\w+)`", entry[1])
            found |= {name: [entry[2]] for name in names}
        elif line.startswith("  ") and names:
            for name in names:
                found[name].append(line.strip())
        else:
            names = []
    return {name: " ".join(lines).removesuffix(_FULL_STOP) for name, lines in found.items()}

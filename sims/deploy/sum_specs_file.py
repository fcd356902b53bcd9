"""The file `sums.toml`: the table (specification) of all kinds of sums, which a server and its clients share.

    [[sum]]
    kind = "mean"

    [[sum.part]]
    name = "x"
    size = 1000
    bits = 32
    bound = {l2 = 1.0}

A client can join only if its table has the same digest as the server's. The layout of the files may differ.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import PlainValidator

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError
from secagg.sum_spec import L2, Bound, Count, LInf, Part, Residue, SumSpec, Table
from sims.config_problems import Problems, shown
from sims.deploy.config import ConfigSection, load

_BOUNDS: Final = "{l2 = 1.0}, {linf = 1.0}, {count = 10}, {count = 10, total = 10} or 'residue'"
_MOST_DIGITS: Final = 1000


def _bound(value: object) -> Bound:
    """Parse the bound of a part of a sum, such as {l2 = 1.0}. Raise `ValueError` if it is invalid."""
    try:
        match value:
            case "residue":
                return Residue()
            case {"l2": limit, **rest} if not rest:
                return L2(limit)
            case {"linf": limit, **rest} if not rest:
                return LInf(limit)
            case {"count": limit, "total": total, **rest} if not rest:
                return Count(limit, total)
            case {"count": limit, **rest} if not rest:
                return Count(limit)
    except SpecError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"must be one of {_BOUNDS}, not {shown(value)}")


def _variance(value: object) -> Fraction:
    """Parse a variance as an exact fraction: 0.1 is one tenth. Raise `ValueError` if it is not a number."""
    text = str(value)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or len(text) > _MOST_DIGITS:
            raise ValueError
        # The exponent is checked first, because an exact 1e999999999 would use all memory.
        if abs(int(text.lower().partition("e")[2] or 0)) > _MOST_DIGITS:
            raise ValueError
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"must be a number such as 12.5 or '25/2', not {shown(value)}") from None


class NoiseSection(ConfigSection):
    scale: float
    variance: Annotated[Fraction, PlainValidator(_variance)]


class PromiseSection(ConfigSection):
    clients: int
    dropouts: int
    colluders: int
    removable: bool = False


class PartSection(ConfigSection):
    name: str
    size: int
    bits: int
    bound: Annotated[Any, PlainValidator(_bound)]
    noise: NoiseSection | None = None

    def made(self) -> Part:
        noise = None if self.noise is None else Noise(**dict(self.noise))
        return Part(name=self.name, size=self.size, bits=self.bits, bound=self.bound, noise=noise)


class SumSection(ConfigSection):
    kind: str
    times: int = 1
    group: str | None = None
    promise: PromiseSection | None = None
    part: list[PartSection]


class SumsFile(ConfigSection):
    """The whole content of `sums.toml`: a table [[sum]] for each kind of sum."""

    sum: list[SumSection]


def read_table(path: Path) -> Table:
    """Return the specifications of sums in the file `path`. Raise one `ConfigError` with all problems."""
    sections = load(path, SumsFile).sum
    problems = Problems(path)
    specs: dict[str, SumSpec] = {}
    for number, section in enumerate(sections, start=1):
        if section.kind in specs:
            problems.add(f"sum#{number}.kind", f"{section.kind!r} is there twice; name one of them otherwise")
        spec = _spec(section, f"sum#{number}", problems)
        if spec is not None:
            specs[section.kind] = spec
    problems.check()
    with problems.about("sum"):
        return Table(specs)
    raise problems.error()


def _spec(section: SumSection, key: str, problems: Problems) -> SumSpec | None:
    parts: list[Part] = []
    for number, part in enumerate(section.part, start=1):
        with problems.about(f"{key}.part#{number}"):
            parts.append(part.made())
    if len(parts) < len(section.part):
        return None
    with problems.about(key):
        promise = None if section.promise is None else NoiseAssumptions(**dict(section.promise))
        return SumSpec(parts=tuple(parts), times=section.times, group=section.group, promise=promise)
    return None

"""What both sides of a session agree on beforehand, for the verifier: sums and identities, and their digests.

Written from sections 4.6 and 5.3 of docs/protocol.md; it shares no code with the package. A table is
described as in a transcript (vectors/README.md).
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tests import verifier_noise as noise
from tests.verifier_evidence import SumShape
from tests.verifier_tools import digest, need, pack, u32


def spec_digest(spec: Mapping[str, Any]) -> bytes:
    fields = [list(map(_part_fields, spec["parts"])), spec["times"], spec["group"] or ""]
    if "promise" in spec:
        names = ("clients", "dropouts", "colluders", "removable")
        fields.append([spec["promise"][name] for name in names])
    return digest("spec", pack(fields))


def _part_fields(part: dict[str, Any]) -> list[Any]:
    row = [part["name"], part["size"], part["bits"], part["bound"], part.get("limit", 0.0)]
    row += [part["total"]] if "total" in part else []
    if "noise" in part:
        variance = Fraction(part["noise"]["variance"])
        row.append([part["noise"]["scale"], str(variance.numerator), str(variance.denominator)])
        derived = [noise.width(part), noise.largest_norm2(part)]
        need([part["width"], part["norm2"]] == derived, f"part {part['name']} has another grid")
    return row


def table_digest(table: Mapping[str, Any]) -> bytes:
    rows = [(kind.encode(), spec_digest(table[kind])) for kind in sorted(table)]
    return digest("table", *(field for row in rows for field in row))


def registry_digest(version: int, expires: int, keys: Mapping[int, bytes]) -> bytes:
    members = b"".join(u32(k) + keys[k] for k in sorted(keys))
    return digest("registry", version.to_bytes(8, "big"), expires.to_bytes(8, "big"), members)


def layout(spec: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """(elements on the wire, bits) of each part, and of the hidden count."""
    return (*((noise.width(part), part["bits"]) for part in spec["parts"]), (1, 64))


def seeds(spec: Mapping[str, Any]) -> int:
    """The seeds of removable noise of each client in a sum of this spec."""
    return noise.removable(spec["promise"]) if "promise" in spec else 0


def shapes(table: Mapping[str, Any]) -> dict[bytes, SumShape]:
    """What evidence depends on in each spec, by the digest of the spec."""
    return {spec_digest(spec): SumShape(count_offset(spec), seeds(spec)) for spec in table.values()}


def count_offset(spec: Mapping[str, Any]) -> int:
    """The bytes of a mask's key stream before the word of the hidden count."""
    *parts, _count = layout(spec)
    return sum(size * next(w for w in (1, 2, 4, 8) if bits <= 8 * w) for size, bits in parts)

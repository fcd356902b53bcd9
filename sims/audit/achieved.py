"""What came of a run: accuracy at the end, the private tail, and what canaries proved about noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sims.audit.audit import Achieved, Canary
from sims.audit.evidence import Evidence, Row

# Of several models, the one that people mean; where some clients attack, what it does for the others.
_MEASURED: Final = ("common_benign", "common", "personal_benign", "personal")


def achieved(evidence: Evidence) -> Achieved:
    last: Row = next((row["measured"] for row in reversed(evidence.metrics) if row.get("measured")), {})
    own: Row = next((last[name] for name in _MEASURED if name in last), {})
    return Achieved(
        accuracy=own.get("mean_accuracy"),
        error_90=own.get("error_90"),
        worst_tenth=own.get("worst_tenth"),
        completed=sum(bool(row.get("completed")) for row in evidence.metrics if row.get("round", 0) > 0),
        seconds=float((evidence.run.get("seconds") or {}).get("wall", 0.0)),
    )


def tail(evidence: Evidence) -> Mapping[str, Any]:
    """The last private histogram, if there is one."""
    return next((row["tail"] for row in reversed(evidence.metrics) if row.get("tail")), {})


def canaries(evidence: Evidence) -> tuple[Canary, ...]:
    """One for every kind of noisy sum for which canaries were on."""
    return tuple(_canaries(evidence.canaries)) if evidence.canaries else ()


def _canaries(content: Row) -> Iterator[Canary]:
    for row in content.get("specs") or ():
        yield Canary(
            kind=row["kind"],
            runs=2 * row["runs_per_arm"],
            bound=row["epsilon_gaussian"],
            bound_of_any_noise=row["epsilon_clopper_pearson"],
            claimed=row["epsilon"],
            delta=row["delta"],
            confidence=row["confidence"],
            holds=bool(row["holds"]) and not _refutes(row),
        )


def _refutes(row: Row) -> bool:
    """Whether a bound is above what is claimed, whatever verdict was written down beside it."""
    bounds = (row["epsilon_gaussian"], row["epsilon_clopper_pearson"])
    return any(bound is not None and bound > row["epsilon"] for bound in bounds)

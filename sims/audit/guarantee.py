"""Composes the privacy cost of all released sums of a run into one guarantee for each of its clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from protocols.evaluation import ErrorHistogram, Scores
from sims.audit.audit_result import Guarantee, PrivacySpending, Release
from sims.audit.privacy_cost import PrivacyAccount
from sims.text_format import counted

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
TAIL: Final = "tail"
_ROUNDED: Final = 1 + 1e-9  # clients round the cost of every sum up
_PURPOSES: Final = (TRAINING, EVALUATION, TAIL)


def guarantee(
    found: Sequence[Release], extra: Iterable[str], spending: PrivacySpending, account: PrivacyAccount
) -> Guarantee:
    """Return the guarantee of a run that released the sums `found`. `extra` are kinds of sums that the
    training does not use. The costs of all sums are added, as one client may be in all of them, and converted
    to epsilon at the delta of `account`."""
    outside = frozenset(extra)
    covers = _purposes((each for each in found if each.rho is not None), outside)
    unnoised = _purposes((each for each in found if each.rho is None), outside)
    most = spending.most
    rho = math.fsum(each.rho for each in found if each.rho is not None)
    if most is not None and most.rho > rho * _ROUNDED:
        rho = most.rho
    private = bool(covers) and not unnoised
    return Guarantee(
        epsilon=account.epsilon(rho) if private else None,
        delta=account.delta,
        rho=rho if private else None,
        adjacency=spending.adjacency,
        covers=covers,
        unnoised=unnoised,
        most_spent=most,
        why=_why(found, covers, unnoised),
    )


def _purposes(found: Iterable[Release], extra: frozenset[str]) -> tuple[str, ...]:
    own = {_purpose(each.kind, extra) for each in found}
    return tuple(each for each in _PURPOSES if each in own)


def _purpose(kind: str, extra: frozenset[str]) -> str:
    if kind in extra:
        return TAIL
    return EVALUATION if kind in (Scores.kind, ErrorHistogram.kind) else TRAINING


def _why(found: Sequence[Release], covers: Sequence[str], unnoised: Sequence[str]) -> str:
    if not found:
        return "no sum was released"
    if not covers:
        return "no sum that was released has noise"
    bare = sum(each.rho is None for each in found)
    if unnoised:
        return (
            f"{counted(bare, 'sum')} of the {' and the '.join(unnoised)} without noise show the same clients "
            f"as the {counted(len(found) - bare, 'sum')} with noise"
        )
    return f"all {counted(len(found), 'sum')} that were released have noise, and one client may be in all"

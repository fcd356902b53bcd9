"""Composes the privacy cost of all released sums of a run into one guarantee for each of its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from protocols.evaluation import ErrorHistogram, Scores
from secagg.noise.sampling_error import NEGLIGIBLE, sampling_delta
from sims.audit.audit_result import Guarantee, PrivacySpending, Release
from sims.audit.ledger_vs_sum_log import Records
from sims.audit.privacy_cost import PrivacyAccount
from sims.audit.recorded_sum_spec import spec_of
from sims.audit.run_files import Row
from sims.text_format import counted

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
TAIL: Final = "tail"
_ROUNDED: Final = 1 + 1e-9  # clients round the cost of every sum up
_PURPOSES: Final = (TRAINING, EVALUATION, TAIL)


def sampling_errors(records: Records, described: Mapping[str, Row], epsilon: float) -> float:
    """Return what the errors of the noise samplers add to the delta of `epsilon`, over all sums of a run.
    `described` has the description of each kind of sum in `run.json`, for sums that are not in a ledger."""
    sums = Counter(
        (entry.kind if entry.asked is None else spec_of(entry.asked), entry.invited)
        for entry in records.entries
    )
    found = 0.0
    for (spec, roster), often in sums.items():
        known = spec_of(described[spec]) if isinstance(spec, str) else spec
        found += sampling_delta(known, roster=roster, sums=often, epsilon=epsilon)
    return found


def without_sampling_errors(found: Guarantee, added: float) -> Guarantee:
    """Return the guarantee, without an epsilon if the errors of samplers add more than a thousandth to delta:
    `added`, as `sampling_errors` returns it."""
    if added <= NEGLIGIBLE * found.delta:
        return found
    why = (
        f"for an epsilon of {found.epsilon:.4g}, the errors with which noise is drawn add {added:.2g} to "
        f"delta, which is more than a thousandth of {found.delta:g}"
    )
    return replace(found, epsilon=None, rho=None, why=why)


def without_noise_of(found: Guarantee, attackers: int) -> Guarantee:
    """Return the guarantee without an epsilon: so many attackers may send residues without noise, and the
    noise of the others was not planned to be enough without theirs."""
    who = counted(attackers, "attacker")
    why = f"{who} beyond the planned colluders may have sent residues without noise, which the others rely on"
    return replace(found, epsilon=None, rho=None, why=why)


def guarantee(
    found: Sequence[Release], extra: Iterable[str], spending: PrivacySpending, account: PrivacyAccount
) -> Guarantee:
    """Return the guarantee of a run that released the sums `found`. `extra` are kinds of sums that the
    training does not use. The costs of all sums are added, as one client may be in all of them, or in as many
    rounds as it may take part in, and converted to epsilon at the delta of `account`."""
    outside = frozenset(extra)
    covers = _purposes((each for each in found if each.rho is not None), outside)
    unnoised = _purposes((each for each in found if each.rho is None), outside)
    most = spending.most
    rho = spending.server.rho
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
        why=_why(found, covers, unnoised, spending.participations),
    )


def _purposes(found: Iterable[Release], extra: frozenset[str]) -> tuple[str, ...]:
    own = {_purpose(each.kind, extra) for each in found}
    return tuple(each for each in _PURPOSES if each in own)


def _purpose(kind: str, extra: frozenset[str]) -> str:
    if kind in extra:
        return TAIL
    return EVALUATION if kind in (Scores.kind, ErrorHistogram.kind) else TRAINING


def _why(
    found: Sequence[Release], covers: Sequence[str], unnoised: Sequence[str], participations: int | None
) -> str:
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
    every = f"all {counted(len(found), 'sum')} that were released have noise"
    if participations is None:
        return f"{every}, and one client may be in all"
    return f"{every}, and a client takes part in {counted(participations, 'round')} of the training at most"

"""Lists the released sums of a run: what each kind reveals, the noise on each total, and the privacy cost. A
kind is a type of sum, such as the sum of all updates. The ledger has the sizes, bounds and noise of each sum.
What the totals of a kind reveal about clients is described in words in `run.json`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, assert_never

from secagg.distributed_noise import NoiseAssumptions
from secagg.sum_spec import L2, Bound, Count, LInf, Residue, SumSpec
from sims.audit.audit_result import Release, RoundRange, SumKind, SumPart
from sims.audit.ledger_vs_sum_log import MatchedSum, Records
from sims.audit.privacy_cost import BudgetAccounts, PrivacyAccount, rho_of_rounds
from sims.audit.recorded_sum_spec import bound_of, spec_of
from sims.audit.run_files import Row
from sims.plan.signal_and_noise import largest_norm


def sigmas(spec: SumSpec, roster: int, contributors: int) -> tuple[float | None, ...]:
    """Return the standard deviation of the noise on each number of a total, one value for each part of the
    sum. It is in the unit of the clients' values; None without noise. `roster` clients were asked, and
    `contributors` are in the total. The noise of all of these counts, even if some collude."""
    left = _left(spec.promise, roster, contributors)
    return tuple(
        None
        if part.noise is None
        else math.sqrt(contributors * left * part.noise.variance) / part.noise.scale
        for part in spec.parts
    )


@lru_cache(maxsize=4096)
def _left(promise: NoiseAssumptions | None, roster: int, contributors: int) -> float:
    """Return the variance of one client's noise that stays in the total (surplus noise is removed), as a
    fraction of the variance that the total needs. Return 0 if `promise` is None."""
    if promise is None:
        return 0.0
    removed = promise.surplus(roster, contributors)
    shares = enumerate(promise.components(roster))
    return float(sum(share for index, share in shares if index not in removed))


# --- releases ---------------------------------------------------------------------------------------


def releases(
    records: Records, described: Mapping[str, Row], budget_accounts: BudgetAccounts
) -> tuple[Release, ...]:
    """Return a `Release` for each released sum. `described` maps each kind to its description in `run.json`,
    which is used for sums that are not in a ledger."""
    costs: dict[bool, dict[int, float]] = {False: {}, True: {}}
    found: list[Release] = []
    for entry in records.entries:
        if entry.contributors is not None:
            own = costs[entry.extra]
            often = None if entry.extra else budget_accounts.participations
            accounts = budget_accounts.of(extra=entry.extra)
            found.append(_release(entry, len(found) + 1, described, accounts, own, often))
    return tuple(found)


def _release(
    entry: MatchedSum,
    number: int,
    described: Mapping[str, Row],
    accounts: PrivacyAccount,
    costs: dict[int, float],
    participations: int | None,
) -> Release:
    """Return the sum's `Release`. `costs` has the rho of earlier sums of its part of the run, by round; add
    its own, if any."""
    source = described.get(entry.kind) if entry.asked is None else entry.asked
    spec = None if source is None else spec_of(source)
    rho = None if spec is None else accounts.rho(spec, entry.invited)
    if rho is not None:
        costs[entry.round] = costs.get(entry.round, 0.0) + rho
    so_far, count = rho_of_rounds(costs, participations), entry.contributors or 0
    return Release(
        number=number,
        session=-1 if entry.logged is None else entry.logged.session,
        sum=_index(entry),
        round=entry.round,
        kind=entry.kind,
        invited=entry.invited,
        contributors=count,
        sigmas=() if spec is None else sigmas(spec, entry.invited, count),
        rho=rho,
        epsilon=None if rho is None else accounts.epsilon(rho),
        rho_so_far=so_far,
        epsilon_so_far=accounts.epsilon(so_far) if costs else None,
    )


def _index(entry: MatchedSum) -> int:
    if entry.asked is not None:
        return int(entry.asked["sum index"])
    assert entry.logged is not None  # every sum is in the ledger or the log
    assert entry.logged.index is not None  # a total was released
    return entry.logged.index


# --- ranges of rounds -------------------------------------------------------------------------------


def round_ranges(found: Sequence[Release], extra: Container[str]) -> tuple[RoundRange, ...]:
    """Return ranges of consecutive rounds that released the same number of sums of each kind. The privacy
    cost of a range is that of all training sums so far or, if it has only `extra` kinds, all extra sums."""
    rounds: dict[int, list[Release]] = {}
    for release in found:
        rounds.setdefault(release.round, []).append(release)
    made: list[RoundRange] = []
    for number, own in rounds.items():
        one = _round_range(number, own, extra)
        last = made[-1] if made else None
        if last is not None and last.last + 1 == number and last.sums == one.sums:
            least = min(last.least_contributors, one.least_contributors)
            most = max(last.most_contributors, one.most_contributors)
            made[-1] = replace(
                one, first=last.first, sums=last.sums, least_contributors=least, most_contributors=most
            )
        else:
            made.append(one)
    return tuple(made)


def _round_range(number: int, own: Sequence[Release], extra: Container[str]) -> RoundRange:
    counts = [release.contributors for release in own]
    last = ([release for release in own if release.kind not in extra] or list(own))[-1]
    return RoundRange(
        first=number,
        last=number,
        sums=dict(Counter(release.kind for release in own)),
        least_contributors=min(counts),
        most_contributors=max(counts),
        rho_so_far=last.rho_so_far,
        epsilon_so_far=last.epsilon_so_far,
    )


_UNKNOWN = "nothing is written down about what it reveals"


def kinds_of(written: Iterable[Mapping[str, Any]], entries: Iterable[MatchedSum]) -> tuple[SumKind, ...]:
    """Return all kinds of sums in `run.json` (`written`) and `entries`. The ledger overrides their parts."""
    found = {row["kind"]: dict(row) for row in written}
    for entry in entries:
        if entry.asked is not None:
            new = {"group": entry.kind, "times": None, "reveals": _UNKNOWN, "extra": entry.extra}
            found.setdefault(entry.kind, new)["parts"] = entry.asked["parts"]
    return tuple(_kind(name, row) for name, row in found.items())


def _kind(name: str, row: Mapping[str, Any]) -> SumKind:
    parts = tuple(_sum_part(part) for part in row["parts"])
    return SumKind(
        kind=name,
        group=row["group"],
        times=row["times"],
        parts=parts,
        reveals=row["reveals"],
        private=all(part.noisy for part in parts),
        extra=bool(row.get("extra", False)),
    )


def _sum_part(row: Mapping[str, Any]) -> SumPart:
    bound = bound_of(row["bound"])
    return SumPart(
        name=row["name"],
        size=row["size"],
        bits=row["bits"],
        bound=_bound_text(bound),
        noisy=row["noise"] is not None,
        largest_norm=largest_norm(bound, row["size"]),
        counts=isinstance(bound, Count),
    )


def _bound_text(bound: Bound) -> str:
    """Return a text that states how much one honest client can add to a part with this bound."""
    match bound:
        case L2(limit):
            return f"a norm of at most {limit:g}"
        case LInf(limit):
            return f"every number within +-{limit:g}"
        case Count(limit, total):
            together = "" if total is None else f", together at most {total:,}"
            return f"whole numbers from 0 to {limit:,}{together}"
        case Residue():
            return "residues, which wrap around"
        case _:
            assert_never(bound)

"""What ``secagg plan`` found out, in lines for a person."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from secagg.params import LIVENESS_BITS
from sims.text_format import EXACT_TOTAL, counted

if TYPE_CHECKING:
    from protocols.catalogue_entry import Parameter
    from sims.plan.cost_plan import CostPlan, GroupCost, PartCost, SumCost


def lines(name: str, outlook: "CostPlan") -> Iterator[str]:
    """All there is to say about a plan."""
    yield f"{name}: {outlook.clients:,} clients, {outlook.dim:,} parameters, {outlook.trust}"
    if not outlook.sums:
        yield "no sum at all: a server learns nothing, and nothing is sent"
        return
    yield from _costs(outlook)
    for each in outlook.sums:
        yield from _sum_lines(each, outlook.quorum)
    yield "every total also tells over how many clients it is"
    yield from _chances(outlook)
    if outlook.unsafe:
        yield f"under a malicious_server it is refused: {outlook.unsafe}"


def _costs(outlook: "CostPlan") -> Iterator[str]:
    most = "up to " if outlook.sums_per_round > 1 else ""
    yield (
        f"a round takes {most}{counted(outlook.sums_per_round, 'sum')}: {outlook.round_bytes:,} bytes from "
        f"each client, and {outlook.broadcast_bytes:,} bytes of queries to each"
    )
    yield (
        f"a session lasts {counted(outlook.rounds_per_session, 'round')}; its keys and shares take "
        f"{outlook.setup_bytes:,} bytes from each client, once"
    )
    yield f"nothing is released over fewer than {outlook.quorum:,} clients"


def _sum_lines(each: "SumCost", quorum: int) -> Iterator[str]:
    often = "once" if each.times == 1 else f"up to {counted(each.times, 'time')}"
    yield f"{each.kind}: {often} a round, {each.bytes_up:,} bytes up and {each.broadcast_bytes:,} down each"
    yield f"  reveals        {each.reveals}"
    if each.rho is not None:
        yield f"  private        yes: {each.rho:.3g} rho (zCDP) each; only the number of clients has no noise"
    else:
        yield f"  private        no: {EXACT_TOTAL}"
    if each.least_clients > quorum:
        yield f"  clients        {each.least_clients:,} at least, or there would be too little noise"
    for part in each.parts:
        yield from _part_lines(part)


def _part_lines(part: "PartCost") -> Iterator[str]:
    size = f"{counted(part.size, 'number')} of {counted(part.bits, 'bit')}"
    yield f"  {part.name:<14} {size}: {part.meaning}"
    if part.sigma_total is not None and part.sigma_mean is not None:
        yield (
            f"  {'':<14} with noise of the standard deviation {part.sigma_total:.3g} on each number of a "
            f"total over all, and {part.sigma_mean:.3g} on their mean"
        )


def _chances(outlook: "CostPlan") -> Iterator[str]:
    before = ""
    for group in outlook.groups:
        yield _group_line(group, before, all_needed=outlook.needs_everybody)
        before = ", and all before it,"
    if outlook.needs_everybody:
        yield "it needs every client in every sum: a single one that is missing ends the round"
    yield f"a round completes with probability {_chance(outlook.round_completes)}"
    if outlook.ring:
        yield (
            f"clients stand on a ring: as long as at most {outlook.margin:,} leave, some are left with too "
            f"few neighbours with a probability of up to 2^-{LIVENESS_BITS} beside that"
        )


def _group_line(group: "GroupCost", before: str, *, all_needed: bool) -> str:
    if group.sums == 1:
        return f"the sum of {group.name}{before} is released with probability {_chance(group.completes)}"
    line = f"all {group.sums} sums of {group.name}{before} are released with probability "
    if all_needed:
        return line + _chance(group.completes)
    return (
        f"{line}{_chance(group.completes)}, {group.expected:.3g} of them on average; a client that leaves "
        f"in between ends the group, and {_consequence(group)}"
    )


def _consequence(group: "GroupCost") -> str:
    if group.needed == group.sums:
        return "the round is given up"
    return (
        "its last total stands" if group.needed <= 1 else f"its last total stands from the {group.needed}. on"
    )


def _chance(probability: float) -> str:
    """With four digits; what is not quite certain is not written as 1."""
    text = f"{probability:.4g}"
    return "more than 0.9999" if text == "1" and probability < 1 else text


# --- parameters ---------------------------------------------------------------------------------------


def parameter_lines(name: str, settings: Sequence["Parameter"]) -> Iterator[str]:
    """What can be set of an algorithm."""
    if not settings:
        yield f"{name} has no parameters"
        return
    yield f"{name}: set with --set NAME=VALUE"
    width = 2 + max(len(each.name) for each in settings)
    for each in settings:
        yield f"  {each.name:<{width}}{_default(each)}{each.meaning}"


def _default(each: "Parameter") -> str:
    private = "with --rho or --epsilon; " if each.private else ""
    value = "must be set" if each.required else f"default {_plain(each.default)}"
    return f"({private}{value}) "


def _plain(value: object) -> object:
    """As it would be typed."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int | float) else str(value)


def parameters_as_json(settings: Sequence["Parameter"]) -> dict[str, dict[str, object]]:
    return {
        each.name: {
            "default": each.default if isinstance(each.default, int | float | None) else str(each.default),
            "required": each.required,
            "private_variant_only": each.private,
            "meaning": each.meaning,
        }
        for each in settings
    }

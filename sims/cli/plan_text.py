"""Renders the plan of an algorithm (what it costs and reveals) as lines of text for ``secagg plan``."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from secagg.session_params import LIVENESS_BITS
from sims.text_format import EXACT_TOTAL, counted

if TYPE_CHECKING:
    from protocols.catalogue_entry import Parameter
    from sims.plan.cost_plan import CostPlan, GroupCost, PartCost, SumCost


def lines(name: str, outlook: "CostPlan") -> Iterator[str]:
    """Yield lines of text that say what a round of the algorithm `name` costs clients and reveals."""
    terms = f"{outlook.trust}, {outlook.key_agreement}"
    yield f"{name}: {outlook.clients:,} clients, {outlook.dim:,} parameters, {terms}"
    if not outlook.sums:
        yield "no sums: the server learns nothing, and clients send nothing"
        return
    yield from _costs(outlook)
    for each in outlook.sums:
        yield from _sum_lines(each, outlook.quorum)
    yield "every total also reveals the number of clients in it"
    yield from _chances(outlook)
    yield from (f"caution: {caution}" for caution in outlook.cautions)
    if outlook.unsafe:
        yield f"refused under malicious_server: {outlook.unsafe}"


def _costs(outlook: "CostPlan") -> Iterator[str]:
    most = "up to " if outlook.sums_per_round > 1 else ""
    yield (
        f"a round takes {most}{counted(outlook.sums_per_round, 'sum')}: each client sends "
        f"{outlook.round_bytes:,} bytes and receives {outlook.broadcast_bytes:,} bytes of queries"
    )
    yield (
        f"a session lasts {counted(outlook.rounds_per_session, 'round')}; at its start, each client sends "
        f"{outlook.setup_bytes:,} bytes of keys and shares"
    )
    yield f"a total is released only over at least {outlook.quorum:,} clients"
    if outlook.liars:
        liars = counted(outlook.liars, "client")
        yield f"up to {liars} may lie about masks, one after another: each costs a sum at most"


def _sum_lines(each: "SumCost", quorum: int) -> Iterator[str]:
    often = "once" if each.times == 1 else f"up to {counted(each.times, 'time')}"
    yield (
        f"{each.kind}: {often} a round; per client {each.bytes_up:,} bytes up and "
        f"{each.broadcast_bytes:,} down"
    )
    yield f"  reveals        {each.reveals}"
    if each.rho is not None:
        yield f"  private        yes: {each.rho:.3g} rho (zCDP) a sum; the number of clients has no noise"
    else:
        yield f"  private        no: {EXACT_TOTAL}"
    if each.least_clients > quorum:
        yield f"  clients        at least {each.least_clients:,}; with fewer, there is too little noise"
    for part in each.parts:
        yield from _part_lines(part)


def _part_lines(part: "PartCost") -> Iterator[str]:
    size = f"{counted(part.size, 'number')} of {counted(part.bits, 'bit')}"
    yield f"  {part.name:<14} {size}: {part.meaning}"
    if part.sigma_total is not None and part.sigma_mean is not None:
        yield (
            f"  {'':<14} noise of standard deviation {part.sigma_total:.3g} on each number of a "
            f"total over all clients, and {part.sigma_mean:.3g} on the mean"
        )


def _chances(outlook: "CostPlan") -> Iterator[str]:
    before = ""
    for group in outlook.groups:
        yield _group_line(group, before, needs_all=outlook.needs_all_clients)
        before = ", with all earlier ones,"
    if outlook.needs_all_clients:
        yield "every sum needs every client: if one client is missing, the round ends"
    yield f"a round completes with probability {_chance(outlook.round_completes)}"
    if outlook.ring:
        yield (
            f"clients are on a ring: if at most {outlook.margin:,} drop out, the probability that a client "
            f"keeps too few neighbours is at most 2^-{LIVENESS_BITS}, in addition to the above"
        )


def _group_line(group: "GroupCost", before: str, *, needs_all: bool) -> str:
    if group.sums == 1:
        return f"the sum of {group.name}{before} is released with probability {_chance(group.completes)}"
    line = f"all {group.sums} sums of {group.name}{before} are released with probability "
    if needs_all:
        return line + _chance(group.completes)
    return (
        f"{line}{_chance(group.completes)}, {group.expected:.3g} on average; if a client drops out "
        f"mid-group, the group ends and {_consequence(group)}"
    )


def _consequence(group: "GroupCost") -> str:
    if group.needed == group.sums:
        return "the round is abandoned"
    return (
        "the last total is kept"
        if group.needed <= 1
        else f"the last total is kept, if at least {group.needed} were released"
    )


def _chance(probability: float) -> str:
    """Return a probability as text with four significant digits. One below 1 is never written as 1."""
    text = f"{probability:.4g}"
    return "more than 0.9999" if text == "1" and probability < 1 else text


# --- parameters ---------------------------------------------------------------------------------------


def parameter_lines(name: str, settings: Sequence["Parameter"]) -> Iterator[str]:
    """Yield the lines that describe the parameters of an algorithm."""
    if not settings:
        yield f"{name} has no parameters"
        return
    yield f"{name}: set with --set NAME=VALUE"
    width = 2 + max(len(each.name) for each in settings)
    for each in settings:
        private = "with --rho or --epsilon; " if each.private else ""
        value = "must be set" if each.required else f"default {_plain(each.default)}"
        yield f"  {each.name:<{width}}({private}{value}) {each.meaning}"


def _plain(value: object) -> object:
    """Return the value as a user would type it on the command line."""
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

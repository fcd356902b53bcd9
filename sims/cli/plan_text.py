"""Renders the plan of an algorithm (what it costs and reveals) as lines of text for ``secagg plan``."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from secagg.session_params import LIVENESS_BITS
from sims.plan.signal_and_noise import described, verdict
from sims.text_format import EXACT_TOTAL, counted, size

if TYPE_CHECKING:
    from protocols.catalogue_entry import Parameter
    from sims.plan.cost_plan import CostPlan, GroupCost, PartCost, SumCost
    from sims.plan.signal_and_noise import SignalAndNoise
    from sims.plan.transport_latency import TransportCost


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
    if outlook.signal is not None:
        yield from _learning(outlook.signal)
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
        yield (
            f"  private        yes: it costs a client {each.rho:.3g} rho, a measure of lost privacy that "
            "adds up over sums; the number of clients has no noise"
        )
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


def _learning(signal: "SignalAndNoise") -> Iterator[str]:
    """Yield lines that say how large the noise is beside what the run can learn."""
    yield f"will it learn? {verdict(signal)}"
    yield from (f"  {each.kind}: {described(each)}" for each in signal.vectors)


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


# --- transport ----------------------------------------------------------------------------------------

_LARGE = 1 << 20  # bytes of a message that no transport was measured with
_SOON = 0.5  # seconds a round, up to which no transport is worth a thought
_MINUTE, _HOUR = 60, 3600


def transport_lines(plan: "CostPlan", cost: "TransportCost") -> Iterator[str]:
    """Yield lines that say how much time the transport adds to a round, and whether that matters."""
    carried = cost.transport
    yield f"transport {carried.name} ({carried.meaning}): about {_seconds(carried.seconds)} a stage"
    yield f"  measured       {carried.origin}"
    if not cost.sum_stages:
        yield "  time           there are no sums, so the transport adds nothing"
        return
    yield f"  stages         {_stages(plan, cost)}"
    most = "up to " if plan.sums_per_round > 1 else ""
    yield (
        f"  time           {most}{counted(cost.sum_stages, 'stage')} of about {_seconds(carried.seconds)} "
        f"each: {_seconds(cost.seconds_per_round)} a round and {_seconds(cost.seconds)} for "
        f"{counted(cost.rounds, 'round')}, besides training, computation and the bytes above"
    )
    yield (
        f"                 {_seconds(cost.seconds_with_session)} for a round that starts a session, because "
        "clients dropped out before it, or cohort.per_round draws others"
    )
    if not all(each.private for each in plan.sums):
        evaluation = cost.stages_per_sum * carried.seconds
        yield f"  evaluation     a sum of its own, where there is one: {_seconds(evaluation)} a round more"
    yield f"  judgement      {_judgement(cost)}"


def _stages(plan: "CostPlan", cost: "TransportCost") -> str:
    names = "mask, confirm, reveal" if cost.stages_per_sum > 2 else "mask, reveal"
    setup = "advertise, share, deposit" if cost.setup_stages > 2 else "advertise, share"
    start = f"{cost.setup_stages} ({setup}) at the start of a session"
    opened = cost.transport.connection_exchanges
    connection = f"; {opened} exchanges once, to connect" if opened else ""
    most = "up to " if plan.sums_per_round > 1 else ""
    sums = counted(plan.sums_per_round, "sum")
    per_round = f"{cost.stages_per_sum} a sum ({names}), so {most}{cost.sum_stages} a round of {sums}"
    return f"{per_round}; {start}{connection}"


def _judgement(cost: "TransportCost") -> str:
    if cost.message_bytes > _LARGE:
        return (
            f"measured with small messages: with {size(cost.message_bytes)} each, the network and the engine "
            "decide how long a stage takes"
        )
    added = cost.seconds_per_round
    if added <= _SOON:
        return "little: training and the network decide how long a round takes"
    setup = cost.setup_stages / cost.rounds_per_session
    if setup > cost.sum_stages:
        return f"the start of sessions dominates: raise --session-sums.{_alternative(cost)}"
    return (
        f"the stages dominate rounds in which clients train for less than {_seconds(added)}; an algorithm "
        f"with fewer sums has fewer stages.{_alternative(cost)}"
    )


def _alternative(cost: "TransportCost") -> str:
    """Return a sentence about the next faster transport, or nothing if there is none."""
    from sims.plan.transport_latency import TRANSPORTS

    other = TRANSPORTS.get(cost.transport.faster)
    if other is None:
        return ""
    would = cost.seconds_per_round / cost.transport.seconds * other.seconds
    return f" With {other.name} ({other.meaning}), a round would take {_seconds(would)} for them"


def _seconds(number: float) -> str:
    """Return a time with up to two significant digits, in a unit that suits it."""
    if number >= 100 * _MINUTE:
        return f"{_two(number / _HOUR)} h"
    return f"{_two(number / _MINUTE)} min" if number >= 100 else f"{_two(number)} s"


def _two(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


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

"""Preflight: compute what a session will need before it starts, and report all problems at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg.bitmap import bitmap_bytes
from secagg.errors import ParameterError, SpecError
from secagg.graph_parameters import GraphChoice
from secagg.input_encoding import Encoding
from secagg.message_records import Format
from secagg.messages import MAX_SUMS, frame_bytes
from secagg.session_params import SessionParams, check_whole
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES
from secagg.sum_spec import COUNT_BYTES, L2, LInf, SumSpec, Table
from secagg.topology import GraphPlan, plan
from secagg.trust_levels import Trust, dropouts_allowed

_SUM_INDEX: Final = 1  # bytes of an encoded sum index, which is below 128


@dataclass(frozen=True)
class PartReport:
    """What `preflight` finds for one part (vector) of a kind of sum: its bits per element, the bits needed,
    and `resolution`, its grid step in values (None for whole numbers, or if it has too few bits)."""

    kind: str
    part: str
    bits: int
    bits_needed: int
    resolution: float | None  # the grid step in values; None for whole numbers, or if bits are too few


@dataclass(frozen=True)
class Preflight:
    """The result of `preflight` for `clients` clients. Start a session only if `problems` is empty. `graph`
    and `threshold` are None if no graph is safe.

    `quorum`  the fewest clients that have to stay to unmask a sum safely (`min_contributors` may be more).
    `margin`  the most clients that may drop out: so many that `quorum` and `min_contributors` clients stay,
              at most the drop-outs planned for noise, and on a ring so few that no client is left with too
              few neighbours.
    `liars`   the most clients that may lie, one after another, before too few are left for a sum: each is
              removed after one failed sum, and may take one honest client along. Further drop-outs, as many
              as the session plans for, are counted too.
    `setup_bytes_up`, `sum_bytes_up`  bytes that one client sends in set-up, and in a sum of each kind.
    `cautions`  what may end sums early, but harms no client's privacy.
    """

    clients: int
    trust: Trust
    graph: GraphChoice | None  # None, like the threshold, if no graph is safe
    neighbours: int
    threshold: int | None
    quorum: int
    margin: int
    liars: int
    parts: tuple[PartReport, ...]
    setup_bytes_up: int
    sum_bytes_up: dict[str, int]
    problems: tuple[str, ...]
    cautions: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def preflight(table: Table, clients: int, params: SessionParams) -> Preflight:
    """Compute what a session with `clients` clients needs: quorum, drop-out margin, bits and bytes sent.
    Returns a `Preflight`, which lists all problems. Raises `ParameterError` only if `clients` is not an int
    above 0, or if a sum has noise and `params.dropout` is not at least 0 and below 1.

    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1000, bits=6, bound=LInf(9.0)),))})
    >>> found = preflight(table, 100, SessionParams(trust="malicious_server", corrupt=5, dropout=0.1))
    >>> found.ok, found.problems
    (False, ("kind 'mean': part 'x' has 6 bits, but 100 clients need 8",))
    """
    trust, corrupt, dropout, sums = params.trust, params.corrupt, params.dropout, params.sums
    check_whole("clients", clients)
    if clients < 1:
        raise ParameterError("a session needs at least one client", parameter="clients")
    problems: list[str] = []
    planned = None
    try:
        planned = plan(clients, params)
    except ParameterError as error:
        problems.append(str(error))
    if not 1 <= sums <= MAX_SUMS:
        problems.append(f"a session has from 1 to {MAX_SUMS} sums, not {sums}")
    least = planned.least if planned else trust.least_threshold(clients, corrupt=corrupt)
    quorum = max(least, corrupt + 2)
    if planned and clients - dropouts_allowed(clients, dropout) < quorum:
        problems.append(
            f"a total over fewer than {quorum} clients may show one honest input to {corrupt} colluders, "
            f"but a drop-out of {dropout} leaves {clients - dropouts_allowed(clients, dropout)}"
        )
    for kind, spec in table.items():
        problems += [f"kind {kind!r}: {misfit}" for misfit in _misfits(spec, clients)]
        problems += [f"kind {kind!r}: {lack}" for lack in _lacks(spec, clients, corrupt, dropout)]
    signed, agreement = trust is Trust.MALICIOUS, params.key_agreement
    form = Format(sums, signed=signed, seeds=table.seeds, agreement=agreement)
    neighbours = planned.neighbours if planned else clients - 1
    tolerated = [spec.promise.dropouts for spec in table.values() if spec.promise is not None]
    needed = max(quorum, params.min_contributors)
    margin = max(min(clients - needed, planned.spare if planned else clients, *tolerated), 0)
    liars = _liars(margin, clients, params) if planned else 0
    return Preflight(
        clients=clients,
        trust=trust,
        graph=_graph(planned) if planned else None,
        neighbours=neighbours,
        threshold=planned.threshold if planned else None,
        quorum=quorum,
        margin=margin,
        liars=liars,
        parts=tuple(row for kind, spec in table.items() for row in _parts(kind, spec, clients)),
        setup_bytes_up=_setup_bytes(neighbours, form),
        sum_bytes_up={kind: _sum_bytes(spec, neighbours + 1, form) for kind, spec in table.items()},
        problems=tuple(problems),
        cautions=tuple(_cautions(liars, corrupt)) if planned else (),
    )


def _liars(margin: int, clients: int, params: SessionParams) -> int:
    """Return how many liars a session survives if `margin` clients may go: each takes an honest one along."""
    return max(margin - dropouts_allowed(clients, params.dropout), 0) // 2


def _cautions(liars: int, corrupt: int) -> Iterator[str]:
    if liars < corrupt:
        yield (
            f"if {liars + 1} of the {corrupt} clients that may collude lie about masks, too few may be left "
            "for a sum: each liar is found after one sum, but may take an honest client along"
        )


def _graph(planned: GraphPlan) -> GraphChoice:
    return GraphChoice.RING if planned.is_ring else GraphChoice.COMPLETE


def _misfits(spec: SumSpec, clients: int) -> list[str]:
    misfits = []
    promise = spec.promise
    if promise is not None and not spec.least_roster <= clients <= promise.clients:
        misfits.append(f"its noise is planned for {spec.least_roster} to {promise.clients} clients")
    for part in spec.parts:
        try:
            part.check_fits(clients, promise)
        except SpecError as error:
            misfits.append(str(error))
    return misfits


def _lacks(spec: SumSpec, clients: int, corrupt: int, dropout: Fraction | float) -> Iterator[str]:
    """Yield a sentence if more clients may collude than the noise of `spec` is planned for, and another if
    the fraction `dropout` of `clients` is more than the planned drop-outs."""
    promise = spec.promise
    if promise is not None and promise.colluders < corrupt:
        yield f"its noise is planned for {promise.colluders} colluders, but {corrupt} clients may be corrupt"
    if promise is not None and (absent := dropouts_allowed(clients, dropout)) > promise.dropouts:
        yield f"its noise is planned for {promise.dropouts} drop-outs, but {dropout} of all are {absent}"


def _parts(kind: str, spec: SumSpec, clients: int) -> list[PartReport]:
    rows = []
    for part in spec.parts:
        needed = part.bits_needed(clients, spec.promise)
        resolution = None
        if isinstance(part.bound, (L2, LInf)) and needed <= part.bits:
            alone = SumSpec(parts=(part,), promise=spec.promise if part.noise else None)
            resolution = 1 / Encoding(alone, cohort=clients).scale(part)
        rows.append(PartReport(kind, part.name, part.bits, needed, resolution))
    return rows


def _sum_bytes(spec: SumSpec, around: int, form: Format) -> int:
    """Return the most bytes that one client sends in a sum: masked input, confirmation if signed, and shares
    of all noise seeds and masks. `around` is the number of its neighbours plus 1."""
    signature, words = form.signature_bytes, COUNT_BYTES * (around - 1)
    revealed = 1 + spec.seeds
    shares, hidden = around * SHARE_BYTES * revealed, around * TAG_BYTES * (2 + form.seeds - revealed)
    reveal = frame_bytes(bitmap_bytes(around), shares, hidden, signature) + _SUM_INDEX
    confirmation = frame_bytes(signature) + _SUM_INDEX if form.signed else 0
    return frame_bytes(spec.packed_bytes, words, signature) + _SUM_INDEX + confirmation + reveal


def _setup_bytes(neighbours: int, form: Format) -> int:
    """Return the bytes that one client sends in set-up: its advert, shares with their tags, and deposits."""
    signature = form.signature_bytes
    envelopes, tags = neighbours * form.envelope_bytes, (neighbours + 1) * form.tags_bytes
    deposit = frame_bytes(neighbours * form.deposit_bytes, signature) if form.is_hybrid else 0
    return frame_bytes(form.advert_bytes) + frame_bytes(envelopes, signature, tags, signature) + deposit

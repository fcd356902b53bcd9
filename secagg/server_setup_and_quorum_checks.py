"""Checks that the server makes: of its own parameters, and of the number of clients after each stage. Those
of a client are in `secagg.client_checks`."""

from __future__ import annotations

from typing import Final

from secagg.bitmap import PositionSet
from secagg.client_budget import check_priced
from secagg.errors import CohortChanged, ParameterError, TooFewClients
from secagg.identity_registry import Registry
from secagg.keys import Random
from secagg.message_records import Format
from secagg.messages import Invitation
from secagg.session_params import SessionParams
from secagg.sum_spec import COUNT_BYTES, Table
from secagg.sum_unmasking import Tally
from secagg.topology import Topology, lay_out
from secagg.trust_levels import MAX_COMPLETE, Trust

_NONCE: Final = 32  # bytes
_SMALL_FIELDS: Final = 256  # bytes: enough for all fields of a frame that are neither lists nor vectors


def check_session(table: Table, params: SessionParams, registry: Registry | None, now: int | None) -> None:
    """Raise `LocalError` if the arguments of a new session do not fit together, or the registry has expired.
    `now`, the Unix time in seconds, is needed if the registry has an expiry date."""
    params.check()
    if registry is not None:
        registry.check_current(now)
    if (registry is not None) != (params.trust is Trust.MALICIOUS):
        raise ParameterError("a registry is needed under malicious_server, and only there")
    table.check_fits(params.max_cohort)
    table.check_colluders(params.corrupt)
    check_priced(table)
    for kind, spec in table.items():
        if spec.promise is not None and spec.promise.clients < params.max_cohort:
            raise ParameterError(
                f"the noise of {kind!r} is planned for {spec.promise.clients} clients, "
                f"not for {params.max_cohort}"
            )


def invite(table: Table, params: SessionParams, registry: Registry | None, random: Random) -> bytes:
    """Return the frame that invites all clients, with a new random nonce."""
    terms = str(params.trust), str(params.key_agreement), params.sums
    digests = table.digest, registry.digest if registry else b""
    return Invitation(b"", *terms, *digests, random(_NONCE)).encode()


def largest_frame(form: Format, table: Table, cohort: int) -> int:
    """Return an upper bound of the size, in bytes, of the frames that an honest client sends in any stage of
    a session of at most `cohort` clients."""
    holders = min(cohort, MAX_COMPLETE)
    vector = max(spec.packed_bytes for spec in table.values()) + COUNT_BYTES * holders
    return max(form.largest_record(holders), vector) + _SMALL_FIELDS


def check_enough(present: int, what: str, least: int) -> None:
    """Raise `TooFewClients` if `present` is below `least`. The error says "only (present) clients (what)"."""
    if present < least:
        raise TooFewClients.only(present, what, least)


def topology_for(present: int, params: SessionParams, random: Random) -> Topology:
    """Return the graph of neighbours, drawn for `present` clients. Raises `TooFewClients` if there are fewer
    than `min_cohort`, or no graph is safe for them."""
    check_enough(present, "came", params.min_cohort)
    try:
        return lay_out(params, present, random)
    except ParameterError as error:
        raise TooFewClients(str(error), present=present) from None


def check_dealt(dealt: int, *, stranded: int, least: int) -> None:
    """Raise `TooFewClients` if `dealt` - `stranded` is below `least`: `dealt` clients dealt shares, and
    `stranded` of them have too few neighbours left on a ring."""
    what = "dealt shares and keep enough neighbours" if stranded else "dealt shares"
    check_enough(dealt - stranded, what, least)


def check_survivors(survivors: PositionSet, tally: Tally, topology: Topology) -> None:
    """Raise `SumFailed` if the total over `survivors` cannot be unmasked or must not be released: too few
    clients, too little noise, a client of the group's last total is missing, or the ring is cut apart."""
    question = tally.question
    check_enough(len(survivors), "sent inputs", max(topology.least, question.least_survivors))
    if question.later_in_group and survivors != question.roster:
        raise CohortChanged("a client left in the midst of a group")
    tally.check_reach(survivors, topology.threshold)
    if not topology.graph.joins(survivors):
        raise TooFewClients(
            "the drop-outs cut the ring apart; each part would show its own sum", present=len(survivors)
        )

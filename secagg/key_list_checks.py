"""The client's checks of its cohort, received as a key list or, on a ring, as its neighbours' keys."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from secagg import client_checks
from secagg.cohort_members import Cohort, CohortView, Neighbourhood, ring_session_id, session_id
from secagg.graph_parameters import least_connected
from secagg.identity_registry import Registry
from secagg.message_records import ID_BYTES, Advert, Format, parse_adverts, parse_ids, parse_neighbours
from secagg.messages import KeyList, Neighbours
from secagg.policy import Policy
from secagg.sum_spec import Table
from secagg.trust_levels import MAX_COMPLETE

_SMALL_FIELDS: Final = 256  # enough for all fields of a frame that are not lists


@dataclass(frozen=True)
class Introduction:
    """A client's own data, with which it checks the list of other clients' keys that the server sends."""

    policy: Policy
    registry: Registry | None
    form: Format
    invitation: bytes  # the frame of the invitation
    context: bytes  # the digest of the invitation
    own: Advert

    def by_key_list(self, message: KeyList, frame: bytes) -> Cohort:
        """Check all clients' keys, and return them as a `Cohort`. Raises `PeerError` if a check fails."""
        policy = self.policy
        adverts = parse_adverts(message.adverts, self.form, most=min(policy.max_cohort, MAX_COMPLETE))
        client_checks.check_cohort_size(len(adverts), policy)
        client_checks.check_own_advert(adverts, self.own)
        client_checks.check_threshold(message.threshold, len(adverts), policy)
        self._check_adverts(adverts)
        return Cohort(session_id(self.invitation, frame), message.threshold, adverts)

    def by_neighbours(self, message: Neighbours) -> Neighbourhood:
        """Check ring neighbours' keys; return a `Neighbourhood`. Raises `PeerError` if a check fails."""
        size, threshold = message.size, message.threshold
        client_checks.check_ring_size(size, self.policy)
        adverts = parse_neighbours(message.adverts, self.form, size=size, most=MAX_COMPLETE)
        neighbours = len(adverts) - 1
        client_checks.check_own_advert(adverts.values(), self.own)
        client_checks.check_ring(size, neighbours, threshold, self.policy)
        self._check_adverts(adverts.values())
        members = parse_ids(message.members, size=size, known=adverts)
        session = ring_session_id(
            self.invitation,
            size=size,
            neighbours=neighbours,
            threshold=threshold,
            ring=message.ring,
            members=message.members,
        )
        return Neighbourhood(session, threshold, size, message.ring, adverts, members)

    def _check_adverts(self, adverts: Collection[Advert]) -> None:
        client_checks.check_keys(adverts)
        if self.registry is not None:
            client_checks.check_members(adverts, self.registry)
            for advert in adverts:
                client_checks.check_advert_signature(advert, self.registry, self.context)


def largest_frame(policy: Policy, table: Table) -> int:
    """Return the size in bytes of the largest frame that a client has to accept."""
    form = Format(policy.max_sums, signed=True, seeds=table.seeds, agreement=policy.key_agreement)
    per_member = max(form.neighbour_bytes, form.parcel_bytes)
    lists = min(policy.max_cohort, MAX_COMPLETE) * per_member + policy.max_cohort * ID_BYTES
    return max(lists, policy.max_query_bytes + policy.max_cohort) + _SMALL_FIELDS


def fewest_contributors(cohort: CohortView, policy: Policy) -> int:
    """Return the fewest survivors with which a client accepts a sum: the largest of the threshold, the
    policy's minimum and, on a ring, the number that keeps the honest survivors connected."""
    least = max(cohort.threshold, policy.min_contributors)
    if isinstance(cohort, Cohort):
        return least
    neighbours = len(cohort.neighbourhood) - 1
    connected = least_connected(cohort.size, neighbours, corrupt=policy.corrupt, sigma=policy.security_bits)
    return max(least, connected)

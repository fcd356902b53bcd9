"""The client's checks of received messages: one function per rule. Each raises a `PeerError` on violation.

A rule compares a message with the client's own policy, keys and memory. No received value is trusted. For
each rule, a test shows that an attack succeeds without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from secagg import errors as e
from secagg.client_budget import check_priced, sum_charge
from secagg.client_memory import Memory
from secagg.cohort_members import CohortView
from secagg.errors import SERVER
from secagg.graph_parameters import few_corrupt_neighbours, stays_connected
from secagg.hybrid_keys import check_kem_key
from secagg.identity_registry import Registry, check_identity
from secagg.keys import Identity, check_public_key, verify
from secagg.message_records import Advert, Parcel
from secagg.messages import Invitation
from secagg.policy import Policy
from secagg.sum_spec import SumSpec, Table

# --- the client's own settings ----------------------------------------------------------------------


def check_settings(
    member: int,
    table: Table,
    policy: Policy,
    memory: Memory,
    identity: Identity | None,
    registry: Registry | None,
) -> None:
    """Raise `LocalError` if the settings of a client do not fit together, and `WrongRegistry` if its registry
    is older than one that it has seen."""
    table.check_fits(policy.max_cohort)
    table.check_colluders(policy.corrupt)
    check_priced(table)
    check_identity(member, policy.trust, identity, registry)
    memory.check_owner(member, b"" if identity is None else identity.public)
    memory.spend.check_adjacency(policy.adjacency)
    if registry is not None:
        check_registry_is_current(registry, memory)


# --- the invitation ---------------------------------------------------------------------------------


def check_invitation(invitation: Invitation, policy: Policy, table: Table, registry: Registry | None) -> None:
    """Raise `PeerError` unless the session that is proposed has the terms of this client."""
    check_trust(invitation, policy)
    check_key_agreement(invitation, policy)
    check_session_sums(invitation, policy)
    check_table(invitation, table)
    check_registry(invitation, registry)


def check_trust(invitation: Invitation, policy: Policy) -> None:
    if invitation.trust != policy.trust:
        raise e.WrongTrust(SERVER, f"proposes another trust level; this client needs {policy.trust}")


def check_key_agreement(invitation: Invitation, policy: Policy) -> None:
    if invitation.agreement != policy.key_agreement:
        needed = policy.key_agreement
        raise e.WrongKeyAgreement(SERVER, f"proposes another key agreement; this client needs {needed}")


def check_session_sums(invitation: Invitation, policy: Policy) -> None:
    if not 1 <= invitation.sums <= policy.max_sums:
        raise e.TooManySums(SERVER, f"{invitation.sums} sums; this client allows {policy.max_sums}")


def check_table(invitation: Invitation, table: Table) -> None:
    if invitation.table != table.digest:
        raise e.WrongTable(SERVER, "its table of sums is not this client's")


def check_registry(invitation: Invitation, registry: Registry | None) -> None:
    if invitation.registry != (registry.digest if registry else b""):
        raise e.WrongRegistry(SERVER, "its registry of identities is not this client's")


def check_registry_is_current(registry: Registry, memory: Memory) -> None:
    """Raise `WrongRegistry` if a newer registry was seen before, or a different one of the same version."""
    version, digest = memory.registry
    if registry.version < version:
        raise e.WrongRegistry(SERVER, f"registry {registry.version} is older than {version}, seen before")
    if registry.version == version and registry.digest != digest:
        raise e.WrongRegistry(SERVER, f"registry {version} is not the one of that version seen before")


# --- the key list -----------------------------------------------------------------------------------


def check_cohort_size(size: int, policy: Policy) -> None:
    # There is no check of `max_cohort`: a longer list was refused before it was parsed.
    if size < policy.min_cohort:
        raise e.SmallCohort(SERVER, f"{size} clients; this client needs {policy.min_cohort}")


def check_own_advert(adverts: Iterable[Advert], own: Advert) -> None:
    listed = [advert for advert in adverts if advert.member == own.member]
    if not listed:
        raise e.BadRoster(SERVER, "the key list lacks this client")
    if listed[0] != own:
        raise e.BadKey(SERVER, "the key list changed this client's own keys")


def check_keys(adverts: Iterable[Advert]) -> None:
    """Raise `BadKey` unless each public key in `adverts` passes `check_public_key` and occurs only once."""
    seen: set[bytes] = set()
    for advert in adverts:
        if advert.kem_key:
            check_kem_key(advert.kem_key, peer=advert.member)
        for key in (advert.channel_key, *advert.mask_keys):
            check_public_key(key, peer=advert.member)
            if key in seen:
                raise e.BadKey(advert.member, "advertised a key that occurs twice in the key list")
            seen.add(key)


def check_threshold(threshold: int, cohort: int, policy: Policy) -> None:
    least = policy.trust.least_threshold(cohort, corrupt=policy.corrupt)
    if threshold < least:
        raise e.SmallThreshold(SERVER, f"threshold {threshold}; this client needs {least}")
    if threshold > cohort:
        raise e.SmallCohort(SERVER, f"threshold {threshold} cannot be met by {cohort} clients")


def check_ring_size(size: int, policy: Policy) -> None:
    check_cohort_size(size, policy)
    if size > policy.max_cohort:
        raise e.LargeCohort(SERVER, f"{size} clients; this client allows {policy.max_cohort}")


def check_ring(size: int, neighbours: int, threshold: int, policy: Policy) -> None:
    """Raise `PeerError` if the numbers fit no ring, or if it is too likely that the colluders assumed by
    `policy` hold `threshold` shares of a secret or disconnect the ring."""
    if neighbours % 2 or not 2 <= neighbours < size:
        raise e.BadRoster(SERVER, f"{neighbours} neighbours on a ring of {size}")
    if not 2 <= threshold <= neighbours + 1:
        raise e.SmallThreshold(SERVER, f"threshold {threshold} among {neighbours} neighbours")
    bounds = {"corrupt": policy.corrupt, "sigma": policy.security_bits}
    if not few_corrupt_neighbours(size, neighbours, threshold, **bounds):
        raise e.SmallThreshold(
            SERVER, f"threshold {threshold} of {neighbours} neighbours is within reach of {policy.corrupt}"
        )
    if not stays_connected(size, neighbours, dropped=0, **bounds):
        raise e.SmallCohort(SERVER, f"{policy.corrupt} clients can cut a ring of {neighbours} neighbours")


def check_members(adverts: Iterable[Advert], registry: Registry) -> None:
    for advert in adverts:
        if advert.member not in registry.members:
            raise e.UnknownPeer(advert.member, "is not in the registry")


def check_advert_signature(advert: Advert, registry: Registry, context: bytes) -> None:
    key = registry.members[advert.member]
    verify(key, advert.signature, "advert", context, advert.body, peer=advert.member)


def check_new_session(session: bytes, memory: Memory) -> None:
    if memory.knows_session(session):
        raise e.RepeatedSession(SERVER, "a session with this transcript was seen before")


# --- the delivery -----------------------------------------------------------------------------------


def check_parcel_sender(parcel: Parcel, cohort: CohortView, own: int) -> None:
    if parcel.sender not in cohort.position:
        raise e.UnknownPeer(parcel.sender, "delivered shares, but is no neighbour in the cohort")
    if parcel.sender == own:
        raise e.BadRoster(SERVER, "delivered this client an envelope of its own")


def check_parcel_signature(parcel: Parcel, cohort: CohortView, registry: Registry) -> None:
    """Raise `BadSignature` unless the sender signed the session id, as proof of having the same key list."""
    key = registry.members[parcel.sender]
    verify(key, parcel.signature, "key list", cohort.session, peer=parcel.sender)


def check_sharers(sharers: Collection[int], cohort: CohortView, least: int) -> None:
    if not enough_sharers(sharers, cohort, least):
        needed = _least_sharers(cohort, least)
        raise e.FewContributors(SERVER, f"{len(sharers)} clients shared keys; {needed} are needed")


def enough_sharers(sharers: Collection[int], cohort: CohortView, least: int) -> bool:
    """Return whether a sum of at least `least` clients is possible with `sharers`, of whom this client has
    shares. On a ring, these are only neighbours, and a threshold of them must remain."""
    return len(sharers) >= _least_sharers(cohort, least)


def _least_sharers(cohort: CohortView, least: int) -> int:
    return cohort.threshold if len(cohort.neighbourhood) < cohort.size else least


# --- a query ----------------------------------------------------------------------------------------


def check_sum_index(index: int, last: int, sums: int) -> None:
    if index <= last:
        raise e.RepeatedSum(SERVER, f"sum {index} after sum {last}")
    if index >= sums:
        raise e.TooManySums(SERVER, f"sum {index} of a session of {sums}")


def check_kind(kind: str, table: Table) -> None:
    if kind not in table:
        raise e.UnknownSum(SERVER, "a kind of sum that this client does not have")


def check_budget(memory: Memory, policy: Policy, spec: SumSpec, *, roster: int) -> None:
    """Raise `PolicyError` if a sum of `roster` clients exceeds the privacy budget that `memory` has left."""
    policy.budget.check(memory.spend, sum_charge(spec, roster=roster, adjacency=policy.adjacency))


def check_query_is_new(content: bytes, memory: Memory) -> None:
    if memory.knows_query(content):
        raise e.RepeatedQuery(SERVER, "this query was answered before")


def check_roster(
    roster: Collection[int], sharers: Collection[int], own: int, cohort: CohortView, least: int
) -> None:
    if own not in roster:
        raise e.BadRoster(SERVER, "the roster lacks this client")
    around = [position for position in cohort.neighbourhood if position in roster]
    if not set(around) <= set(sharers):
        raise e.UnknownPeer(SERVER, "the roster names a client whose shares were not delivered")
    if len(roster) < least:
        raise e.FewContributors(SERVER, f"a roster of {len(roster)}; this client needs {least}")
    check_around(around, cohort)


def check_noise_roster(size: int, spec: SumSpec) -> None:
    """Raise `PolicyError` if `spec` has noise that is not planned for a sum that asks `size` clients."""
    promise = spec.promise
    if promise is None:
        return
    if size < spec.least_roster:
        raise e.FewContributors(SERVER, f"a roster of {size}; the noise needs {spec.least_roster} clients")
    if size > promise.clients:
        raise e.LargeCohort(SERVER, f"a roster of {size}; the noise is planned for {promise.clients} clients")


def check_around(around: Collection[int], cohort: CohortView) -> None:
    """Raise `FewContributors` if `around`, this client and neighbours that stay, are below the threshold."""
    if len(around) < cohort.threshold:
        raise e.FewContributors(SERVER, f"{len(around)} around this client; {cohort.threshold} are needed")


# --- the survivors ----------------------------------------------------------------------------------


def check_same_sum(index: int, current: int) -> None:
    if index != current:
        raise e.OutOfOrder(SERVER, f"speaks of sum {index} during sum {current}")


def check_closed_sum(index: int, last: int, sums: int) -> None:
    if not last <= index < sums:
        raise e.RepeatedSum(SERVER, f"closes sum {index} after sum {last} of {sums}")


def check_survivors(survivors: AbstractSet[int], roster: AbstractSet[int], own: int) -> None:
    if own not in survivors:
        raise e.BadSurvivors(SERVER, "calls this client dead")
    if not survivors <= roster:
        raise e.BadSurvivors(SERVER, "a survivor who was not in the roster")


def check_contributors(survivors: Collection[int], cohort: CohortView, least: int) -> None:
    if len(survivors) < least:
        raise e.FewContributors(SERVER, f"{len(survivors)} survivors; this client needs {least}")
    check_around([position for position in cohort.neighbourhood if position in survivors], cohort)


def check_noise_kept(survivors: int, roster: Collection[int], spec: SumSpec) -> None:
    """Raise `FewContributors` if more clients dropped out of a sum than its noise is planned for."""
    dropped = len(roster) - survivors
    if spec.promise is not None and dropped > spec.promise.dropouts:
        raise e.FewContributors(
            SERVER, f"{dropped} of {len(roster)} dropped out; the noise allows {spec.promise.dropouts}"
        )


def check_group_survivors(survivors: AbstractSet[int], roster: AbstractSet[int]) -> None:
    """Raise `GroupChanged` if a client dropped out of a sum that is not the first of the same vectors."""
    if survivors != roster:
        raise e.GroupChanged(SERVER, "survivors differ from the roster in the midst of a group")


def check_confirmations(
    signatures: Sequence[tuple[int, bytes]],
    fields: tuple[bytes, ...],
    *,
    survivors: Collection[int],
    cohort: CohortView,
    registry: Registry,
) -> None:
    """Raise `PeerError` unless `threshold` or more survivors, and no others, validly signed `fields`."""
    alive = {cohort.ids[position] for position in survivors}
    for member, signature in signatures:
        if member not in alive:
            raise e.UnknownPeer(member, "confirmed the survivors without being one")
        verify(registry.members[member], signature, "survivors", *fields, peer=member)
    if len(signatures) < cohort.threshold:
        raise e.FewContributors(SERVER, f"{len(signatures)} confirmations; {cohort.threshold} are needed")

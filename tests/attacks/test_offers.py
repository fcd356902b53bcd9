"""Sessions on other terms than the client's: tables, trust levels, key agreements, registries, kinds, sums.

A client takes nothing that protects it from the wire, so most of these rules are comparisons that fail early:
with the rule gone, the machine still acts by its own table, policy and registry. The tests say so one by
one. The exception is an old registry, which is the client's own.
"""

from __future__ import annotations

from typing import Any

import pytest

from secagg import client_checks
from secagg import messages as m
from secagg.errors import (
    BadSignature,
    PeerError,
    TooManySums,
    UnknownPeer,
    UnknownSum,
    WrongKeyAgreement,
    WrongRegistry,
    WrongTable,
    WrongTrust,
)
from secagg.hybrid_keys import KEM_KEY_BYTES, KeyAgreement
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_registry
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.attackers.differencing import total_over
from tests.attacks.attackers.revoked_identities import revoked_identities
from tests.attacks.guards import BOTH, allow, assert_refused
from tests.attacks.rig import Rig, residue_table

EVERYONE = range(5)


def other_trust(trust: Trust) -> str:
    return str(Trust.CURIOUS if trust is Trust.MALICIOUS else Trust.MALICIOUS)


def offers(trust: Trust) -> list[tuple[dict[str, Any], type[PeerError]]]:
    return [
        ({"trust": other_trust(trust)}, WrongTrust),
        ({"trust": "no_server_at_all"}, WrongTrust),
        ({"agreement": "x25519+ml-kem-768"}, WrongKeyAgreement),
        ({"agreement": "none"}, WrongKeyAgreement),
        ({"sums": 5}, TooManySums),
        ({"sums": 0}, TooManySums),
        ({"table": residue_table(times=2).digest}, WrongTable),
        ({"table": residue_table(bits=33).digest}, WrongTable),
        ({"registry": seeded_registry(b"other", [0, 1, 2]).digest}, WrongRegistry),
        ({"registry": b"" if trust is Trust.MALICIOUS else bytes(32)}, WrongRegistry),
    ]


@pytest.mark.parametrize(
    ("trust", "changes", "error"), [(trust, *offer) for trust in Trust for offer in offers(trust)]
)
def test_other_terms_are_refused(trust: Trust, changes: dict[str, Any], error: type[PeerError]) -> None:
    rig = Rig(5, trust)
    with pytest.raises(error):
        rig.send(0, rig.invitation(**changes))
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_kind_that_the_client_does_not_have(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: without a spec of its own for the kind there is nothing to encode with."""
    rig = Rig(5, trust)
    cohort = rig.set_up(threshold=3)
    with pytest.raises(UnknownSum):
        rig.send(0, rig.query(cohort, 0, EVERYONE, kind="raw.data"))
    assert_refused(rig.machines[0])
    monkeypatch.setattr(client_checks, "check_kind", allow)
    with pytest.raises(KeyError):
        rig.send(1, rig.query(cohort, 0, EVERYONE, kind="raw.data"))
    assert_refused(rig.machines[1])


# --- with the comparison gone, the client still goes by what is its own -----------------------------


def test_a_downgraded_client_still_signs_before_it_reveals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: the trust level that the machine acts by is its policy's."""
    monkeypatch.setattr(client_checks, "check_trust", allow)
    rig = Rig(5, Trust.MALICIOUS)
    rig.invitation = _with(rig, trust=str(Trust.CURIOUS))  # type: ignore[method-assign]
    cohort = rig.set_up(threshold=3)
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE))
    cheated.ask(EVERYONE)
    (reply,) = rig.send(0, rig.survivors(cohort, 0, EVERYONE))
    assert isinstance(reply, m.Confirmation)


def hybrid_rig(trust: Trust) -> Rig:
    return Rig(5, trust, policy_changes={"key_agreement": KeyAgreement.HYBRID})


@pytest.mark.parametrize("trust", BOTH)
def test_a_hybrid_client_refuses_x25519_alone(trust: Trust) -> None:
    """A server that records now must not get sessions that it can decrypt later."""
    rig = hybrid_rig(trust)
    with pytest.raises(WrongKeyAgreement):
        rig.send(0, rig.invitation(agreement="x25519"))
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_downgraded_client_still_uses_its_own_key_agreement(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defence in depth: envelopes and masks are by its policy. The deposits are what follows a delivery."""
    monkeypatch.setattr(client_checks, "check_key_agreement", allow)
    rig = hybrid_rig(trust)
    rig.invitation = _with(rig, agreement="x25519")  # type: ignore[method-assign]
    cohort = rig.set_up(threshold=3)
    assert all(len(advert.kem_key) == KEM_KEY_BYTES for advert in cohort.adverts)
    assert all(len(machine._vault._pair_secrets[0]) == 4 for machine in rig.machines.values())


def test_a_client_encodes_by_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: a wider table on the server's side changes neither bits nor limits here."""
    monkeypatch.setattr(client_checks, "check_table", allow)
    rig = Rig(5, Trust.CURIOUS)
    rig.invitation = _with(rig, table=residue_table(bits=64, times=9).digest)  # type: ignore[method-assign]
    cohort = rig.set_up(threshold=3)
    total = total_over(rig, cohort, rig.query(cohort, 0, EVERYONE), EVERYONE)
    assert total is not None
    assert (total == sum(rig.vectors.values())).all()
    with pytest.raises(TooManySums):
        rig.send(0, rig.query(cohort, 1, EVERYONE, payload=b"second"))
    assert_refused(rig.machines[0])


def test_a_client_verifies_by_its_own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: members of the server's registry are strangers to ours."""
    monkeypatch.setattr(client_checks, "check_registry", allow)
    rig = Rig(3, Trust.MALICIOUS)
    foreign = seeded_registry(rig.seed, [0, 1, 2, 3])
    rig.invitation = _with(rig, registry=foreign.digest)  # type: ignore[method-assign]
    with pytest.raises(UnknownPeer):
        set_up_with(rig, [Colluder(rig, 3)], threshold=3)
    assert_refused(rig.machines[0])


def _with(rig: Rig, **changes: Any) -> Any:
    original = rig.invitation
    return lambda **more: original(**{**changes, **more})


# --- an older registry -----------------------------------------------------------------------------


def revoked_rig() -> Rig:
    """One honest client; the three others' keys leaked, and registry 1, which it has seen, revoked them."""
    rig = Rig(1, Trust.MALICIOUS, registered=3)
    rig.memories[0].remember_registry(1, bytes(32))
    return rig


def test_an_older_registry_reads_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_registry_is_current", allow)
    rig = revoked_rig()
    found = revoked_identities(rig, threshold=3)
    assert found is not None
    assert (found == rig.vectors[0]).all()


def test_an_older_registry_is_refused_before_there_is_a_machine() -> None:
    rig = revoked_rig()
    before = rig.machines[0]
    with pytest.raises(WrongRegistry):
        revoked_identities(rig, threshold=3)
    assert rig.machines[0] is before


def test_identities_of_an_older_registry_do_not_verify_by_the_new_one() -> None:
    """Where the client has the new registry, the leaked keys sign nothing."""
    rig = Rig(1, Trust.MALICIOUS, registered=3)
    new = {k: rig.identity(k).public if k == 0 else rig.identity(k + 10).public for k in range(4)}
    assert rig.registry is not None
    rig.registry = type(rig.registry)(1, new)
    with pytest.raises(BadSignature):
        revoked_identities(rig, threshold=3)
    assert_refused(rig.machines[0])


def test_another_registry_of_a_version_seen_before_is_refused() -> None:
    """An authority that signs two registries of one version, or a server that found such a pair."""
    rig = Rig(1, Trust.MALICIOUS, registered=3)
    other = Registry(0, {0: rig.identity(0).public, 1: rig.identity(9).public})
    rig.machines[0].leave()
    rig.registry = other
    with pytest.raises(WrongRegistry, match="not the one of that version"):
        rig.new_client(0, seed=b"another")

"""A malicious server and its liars cannot prove a lie of an honest client, nor crash one.

Only the server knows what it delivered. So it may convict whom it likes of bad shares, of false reports or of
disputes about them, but there is no evidence of these, and no file can be made to look like it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secagg import errors
from secagg.dealt_shares import DealtShares
from secagg.events import Convicted, Excluded, SessionFailed
from secagg.evidence import Evidence, Offence
from secagg.evidence_examiner import examine
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import UnreadableDealer
from tests.attacks.attackers.liars import (
    DepositLiar,
    DoubleLiar,
    ReporterOfTheAbsent,
    SelfReporter,
    SpoiledClient,
    WordLiar,
    corrupted,
)
from tests.attacks.court import HYBRID, TABLE, Court, one
from tests.attacks.guards import BOTH

SIZE, CORRUPT = 10, 2
AGREEMENTS = pytest.mark.parametrize("agreement", ["x25519", HYBRID])


def framed(liars: dict[int, Any], **settings: Any) -> Court:
    """A session of honest clients, to whom the server delivers garbage. It can convict, but prove nothing."""
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, liars, **settings)
    assert court.convicted
    assert [each.evidence for each in court.convictions] == [None] * len(court.convictions)
    return court


@AGREEMENTS
def test_a_server_that_spoils_envelopes_proves_nothing_against_the_holder(agreement: str) -> None:
    court = framed(one(SpoiledClient, senders=[1, 5, 9]), key_agreement=agreement)
    assert court.convicted == {3: errors.FalseReport}


@AGREEMENTS
def test_a_server_that_spoils_envelopes_proves_nothing_against_the_dealer(agreement: str) -> None:
    court = framed({k: (SpoiledClient, {"senders": [7]}) for k in (1, 2, 4)}, key_agreement=agreement)
    assert court.convicted == {7: errors.UnreadableShares}


def test_as_many_spoiled_envelopes_as_clients_may_lie_convict_nobody() -> None:
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, one(SpoiledClient, senders=[1, 5]))
    assert court.convicted == court.excluded == {}
    court.ask_all()


@pytest.mark.parametrize("offence", ["unreadable shares", "false report", "lost", ""])
def test_no_file_is_evidence_of_a_false_report(offence: str) -> None:
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, {})
    frames = court.server._convictions.frames
    assert frames is not None
    file = Evidence(Offence.WRONG_SHARE, 3, *frames, ()).encode()
    name = b"wrong share"
    changed = file.replace(
        len(name).to_bytes(4, "big") + name, len(offence).to_bytes(4, "big") + offence.encode()
    )
    assert changed != file
    with pytest.raises(errors.ParameterError):
        Evidence.decode(changed)


def test_contradictory_deposits_are_no_evidence() -> None:
    """A malicious server makes honest clients deposit tags of different secrets: it changes an envelope."""
    lie: dict[str, Any] = {"targets": [5, 6, 8], "in_tag": True}
    court = framed(one(DepositLiar, **lie), key_agreement=HYBRID)
    assert court.convicted == {3: errors.ManyDisputes}
    server = court.server
    assert server._convictions.frames is not None
    assert server._registry is not None
    position = server._cohort.position
    said = tuple(server._dealt.deposits.statement(position[each]) for each in (3, 5, 6, 8))
    evidence = Evidence(Offence.MANY_DISPUTES, 3, *server._convictions.frames, said)
    with pytest.raises(errors.Unproven):
        examine(evidence, registry=server._registry, table=TABLE, corrupt=CORRUPT)


def test_one_contradiction_proves_nothing_even_if_nobody_may_collude() -> None:
    """Somebody lies after all. If it is one client, the other is honest."""
    court = Court(Trust.MALICIOUS, 8, 0, one(WordLiar, targets=[5]))
    with pytest.raises(errors.Disputed):
        court.ask()
    server = court.server
    assert server._convictions.frames is not None
    assert server._registry is not None
    for accused, other in ((3, 5), (5, 3)):
        said = tuple(server._tally.input_statement(server._cohort.position[k]) for k in (accused, other))
        evidence = Evidence(Offence.MANY_DISPUTES, accused, *server._convictions.frames, said)
        with pytest.raises(errors.Unproven):
            examine(evidence, registry=server._registry, table=TABLE, corrupt=0)


@AGREEMENTS
def test_a_client_to_whom_all_envelopes_are_spoiled_reports_them(agreement: str) -> None:
    """With hybrid keys, it has no pair secret with anybody, so that it makes no deposit, but reports."""
    everybody = [k for k in range(1, SIZE + 1) if k != 3]
    liars = one(SpoiledClient, senders=everybody)
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, liars, key_agreement=agreement)
    assert court.session.refusals == {}
    assert court.convicted == court.excluded == {3: errors.FalseReport}
    court.ask_all()


# --- reports about oneself, and reports both ways ---------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@AGREEMENTS
def test_a_client_that_reports_itself_is_excluded_alone(trust: Trust, agreement: str) -> None:
    court = Court(trust, 8, 2, one(SelfReporter), key_agreement=agreement)
    assert court.excluded == {3: errors.MalformedMessage}
    assert court.convicted == {}
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
@AGREEMENTS
def test_a_client_that_was_absent_cannot_be_reported(trust: Trust, agreement: str) -> None:
    """It dealt nothing, so that nothing of it could be lost. With hybrid keys, a report would exclude it."""
    params = SessionParams(
        trust=trust, corrupt=1, sums=3, max_cohort=8, dropout=0.2, key_agreement=KeyAgreement(agreement)
    )
    server, clients = local_machines(table=TABLE, params=params, members=range(1, 9))
    clients[3] = corrupted(clients[3], ReporterOfTheAbsent, accused=7)
    session = LocalSession(
        server,
        clients,
        lambda member, asked: {"x": np.arange(5) * member},
        absent=lambda member, stage, index: member == 7 and stage is Stage.SHARE,
    )
    session.open()
    assert {event.peer: type(event.error) for event in session.events if isinstance(event, Excluded)} == {
        3: errors.MalformedMessage
    }


# Thirteen of twenty shares open a secret: if seven others are silent, every report costs a needed share.
SILENT = [(k, "reveal") for k in range(14, 21)]


def test_a_liar_that_reports_and_is_reported_contradicts_too_many() -> None:
    """It seals five envelopes that do not open, and reports five dealers: neither alone is too much."""
    liars = one(DoubleLiar, spoiled=5, accused=[8, 9, 10, 11, 12])
    court = Court(Trust.MALICIOUS, 20, 5, liars, away=SILENT)
    assert court.excluded == {}
    with pytest.raises(errors.Disputed):
        court.ask()
    court.check_verdicts(unproven=[errors.ManyDisputes])
    assert court.convicted == court.excluded == {3: errors.ManyDisputes}
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_hybrid_liar_that_reports_and_is_reported_is_convicted_in_set_up(trust: Trust) -> None:
    liars = one(DoubleLiar, spoiled=5, accused=[8, 9, 10, 11, 12])
    court = Court(trust, 20, 5, liars, key_agreement=HYBRID)
    court.check_verdicts(unproven=[errors.ManyDisputes])
    assert court.convicted == court.excluded == {3: errors.ManyDisputes}
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
def test_two_that_report_each_other_are_both_excluded(trust: Trust) -> None:
    """A liar spoils its envelope for one client, and reports the envelope of that client."""
    court = Court(trust, 8, 2, one(DoubleLiar, spoiled=1, accused=[1]), key_agreement=HYBRID)
    assert court.excluded == dict.fromkeys((1, 3), errors.Dispute)
    court.ask_all()


def test_without_disputes_about_reports_a_liar_drives_an_honest_client_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither has a deposit for the other. The honest one refuses to be asked together with the liar."""
    monkeypatch.setattr(DealtShares, "disputes", lambda _: [])
    court = Court(Trust.CURIOUS, 8, 2, one(DoubleLiar, spoiled=1, accused=[1]), key_agreement=HYBRID)
    assert court.excluded == {}
    court.ask()
    assert type(court.session.refusals[1]) is errors.UnknownPeer
    assert court.excluded[1] is errors.Departed


# --- the end of depositing --------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_session_that_disputes_end_still_says_who_was_excluded(trust: Trust) -> None:
    """Two pairs out of four clients: nobody is left, but the operator learns why, and whom not to admit."""
    liars = one(UnreadableDealer, 2, spoiled=1) | one(DepositLiar, 3, targets=[4], in_tag=True)
    court = Court(trust, 4, 1, liars, key_agreement=HYBRID, dropout=0, opens=False)
    assert court.excluded == dict.fromkeys((1, 2, 3, 4), errors.Dispute)
    kinds = [type(each) for each in court.session.events]
    assert Convicted not in kinds
    assert kinds.index(Excluded) < kinds.index(SessionFailed)

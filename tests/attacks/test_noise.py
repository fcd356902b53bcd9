"""Removable noise: no server, and no client, gets a total with less noise than was promised.

What an attack leaves of the noise is counted exactly, in parts of the promised variance: 1 is what honest
contributors must leave at least. That the layers can really be taken off is shown on the total itself, bit
for bit, against what the clients encoded before they masked it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg import client_checks
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.cohort_members import Cohort
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import (
    BadSignature,
    FalseDealing,
    FewContributors,
    LargeCohort,
    MalformedMessage,
    OutOfOrder,
    ParameterError,
    PeerError,
    SecretReused,
    SpecError,
    Unrecoverable,
    WrongShare,
)
from secagg.events import Convicted, Excluded, SumReleased
from secagg.evidence import Evidence
from secagg.evidence_examiner import examine
from secagg.local_session import LocalSession, Stage
from secagg.query_context import Question
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Table
from secagg.sum_unmasking import Tally
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import RevealingClient
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.attackers.noise_attacks import (
    LIMIT,
    NoisySum,
    claim,
    claim_several,
    claim_twice,
    cut_views,
    noise_table,
)
from tests.attacks.attackers.noise_liars import NoiseForger, NoiseLiar, NoiseSwapper, ReplayingHolder
from tests.attacks.guards import (
    BOTH,
    allow,
    allow_move,
    assert_refused,
    believe_tags,
    keep_question,
    keep_secrets,
)
from tests.attacks.rig import KIND, PART, Rig
from tests.secagg.noisy import Witness, same

# Nine members of whom one colludes, and a threshold that is safe at either trust level.
HONEST, COLLUDER = range(8), 8
SIZE, THRESHOLD = 9, 6
PROMISE = NoiseAssumptions(clients=SIZE, dropouts=2, colluders=1, removable=True)
DEAD = (6, 7)
ALIVE = (*range(6), COLLUDER)
LAYERS = range(1, 1 + PROMISE.seeds)


class Scene:
    """A session in which honest clients met a colluder."""

    def __init__(
        self, trust: Trust, patch: pytest.MonkeyPatch, *, promise: NoiseAssumptions = PROMISE, **settings: Any
    ) -> None:
        table: Table = noise_table(promise, **settings)
        self.rig = rig = Rig(len(HONEST), trust, corrupt=1, registered=1, sums=2, table=table)
        rig.vectors = {member: vector % (1 + LIMIT) for member, vector in rig.vectors.items()}
        self.witness = Witness(patch)
        self.colluders = [Colluder(rig, COLLUDER)]
        self.cohort: Cohort = set_up_with(rig, self.colluders, threshold=THRESHOLD)
        self.witness.look(rig.machines)

    def claim(
        self,
        survivors: Collection[int],
        *,
        asked: Collection[int] = HONEST,
        roster: Collection[int] | None = None,
    ) -> NoisySum:
        return claim(self.rig, self.cohort, survivors, asked=asked, colluders=self.colluders, roster=roster)

    def check_total(self, cheated: NoisySum, members: Collection[int], layers: Collection[int]) -> None:
        """The server reads the sum of `members` without `layers` of their noise."""
        found = cheated.least_noisy_total(members)
        assert found is not None
        assert (found == self.witness.residues(0, members, layers)[0]).all()


def honest(members: Collection[int]) -> list[int]:
    return [member for member in members if member != COLLUDER]


# --- a layer that has to stay ----------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("dropped", range(PROMISE.dropouts + 1))
def test_only_surplus_layers_of_survivors_are_revealed(
    trust: Trust, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that was revealed and a colluder's shares, the server has the surplus and nothing else."""
    scene = Scene(trust, monkeypatch)
    members = HONEST[: len(HONEST) - dropped]
    cheated = scene.claim((*members, COLLUDER), asked=members)
    surplus = PROMISE.surplus(SIZE, SIZE - dropped)
    assert [tuple(cheated.seeds(member)) for member in HONEST] == [
        surplus if member in members else () for member in HONEST
    ]
    scene.check_total(cheated, members, surplus)
    assert cheated.noise_left(members) >= 1


@pytest.mark.parametrize("trust", BOTH)
def test_before_anything_is_revealed_colluders_know_no_layer(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(trust, monkeypatch)
    query = scene.rig.query(scene.cohort, 0, scene.cohort.ids)
    cheated = NoisySum(scene.rig, scene.cohort, query, scene.colluders)
    cheated.ask(HONEST)
    assert [cheated.seeds(member) for member in HONEST] == [{}] * len(HONEST)
    assert cheated.noise_left(honest(ALIVE)) == 1  # if all drop out that may


@pytest.mark.parametrize("trust", BOTH)
def test_layers_that_have_to_stay_would_leave_too_little(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that release shares of every layer, whatever the survivors."""
    monkeypatch.setattr(Question, "surplus", lambda *_: tuple(LAYERS))
    scene = Scene(trust, monkeypatch)
    cheated = scene.claim(ALIVE)
    scene.check_total(cheated, honest(ALIVE), LAYERS)
    assert cheated.noise_left(honest(ALIVE)) == 6 * Fraction(7, 6) / SIZE < 1


# --- another number of survivors -------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_dropped_client_named_as_a_survivor_opens_no_total(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell the others that it is a lie. They release every layer, and the masks stay on."""
    scene = Scene(trust, monkeypatch)
    asked = HONEST[:-1]
    cheated = scene.claim(scene.cohort.ids, asked=asked)
    assert tuple(cheated.seeds(0)) == tuple(LAYERS)
    assert cheated.noise_left(asked) == 7 * Fraction(7, 6) / SIZE < 1
    assert cheated.least_noisy_total(asked) is None


@pytest.mark.parametrize("trust", BOTH)
def test_colluders_named_as_survivors_leave_what_was_promised(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their masks are known and their noise was never added: the promise does not count on it."""
    for dropped in range(PROMISE.dropouts + 1):
        with monkeypatch.context() as patch:
            scene = Scene(trust, patch)
            members = HONEST[: len(HONEST) - dropped]
            cheated = scene.claim((*members, COLLUDER), asked=members)
            scene.check_total(cheated, members, PROMISE.surplus(SIZE, SIZE - dropped))
            assert cheated.noise_left(members) >= 1
    assert cheated.noise_left(members) == 1  # when as many dropped out as may


@pytest.mark.parametrize("trust", BOTH)
def test_colluders_that_nobody_counted_on_leave_less(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where noise counts on everybody, one of them is enough."""
    monkeypatch.setattr(Table, "check_colluders", allow)
    promise = replace(PROMISE, colluders=0)
    scene = Scene(trust, monkeypatch, promise=promise)
    cheated = scene.claim(scene.cohort.ids)
    scene.check_total(cheated, HONEST, promise.surplus(SIZE, SIZE))
    assert cheated.noise_left(HONEST) == Fraction(8, 9) < 1


@pytest.mark.parametrize("trust", BOTH)
def test_noise_that_counts_on_colluders_is_refused(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"1 clients may be corrupt, but the noise of .* for 0 colluders"):
        Scene(trust, monkeypatch, promise=replace(PROMISE, colluders=0))


FEW = (*range(5), COLLUDER)  # one less than may be left; the threshold of shares is met


@pytest.mark.parametrize("trust", BOTH)
def test_fewer_survivors_than_promised_leave_too_little(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_checks, "check_noise_kept", allow)
    scene = Scene(trust, monkeypatch)
    cheated = scene.claim(FEW)
    scene.check_total(cheated, honest(FEW), ())
    assert cheated.noise_left(honest(FEW)) == Fraction(5, 6) < 1


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("removable", [True, False])
def test_fewer_survivors_than_promised_are_refused_before_signing(
    trust: Trust, removable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(trust, monkeypatch, promise=replace(PROMISE, removable=removable))
    with pytest.raises(FewContributors, match="3 of 9 dropped out; the noise allows 2"):
        scene.claim(FEW)
    assert_refused(scene.rig.machines[0])


# --- several numbers of survivors ------------------------------------------------------------------


def test_a_view_hides_fewer_than_the_server_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(Trust.CURIOUS, monkeypatch)
    views = cut_views(scene.cohort, HONEST, DEAD, needed=THRESHOLD - 1)
    assert all(member in view and len(view) >= len(ALIVE) for member, view in views.items())
    assert sum(len(view) >= SIZE - 1 for view in views.values()) == THRESHOLD - 1
    for target in DEAD:
        assert sum(target not in view for view in views.values()) == THRESHOLD - 1


def several(scene: Scene, *, second_lists: bool = False) -> None:
    """The total of all but the dead, with the layers that one drop-out leaves over and not two."""
    cheated = claim_several(
        scene.rig, scene.cohort, DEAD, colluders=scene.colluders, second_lists=second_lists
    )
    layers = PROMISE.surplus(SIZE, SIZE - 1)
    assert set(layers) - set(PROMISE.surplus(SIZE, SIZE - 2))
    scene.check_total(cheated, honest(ALIVE), layers)
    assert cheated.noise_left(honest(ALIVE)) < 1


def test_clients_told_of_different_survivors_leave_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_confirmations", allow)
    several(Scene(Trust.MALICIOUS, monkeypatch))


def test_a_curious_server_is_trusted_not_to_tell_of_different_survivors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no consistency round: the attack succeeds, and only a malicious server would try it."""
    several(Scene(Trust.CURIOUS, monkeypatch))


def test_different_survivors_lack_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(Trust.MALICIOUS, monkeypatch)
    with pytest.raises(FewContributors, match="confirmations; 6 are needed"):
        several(scene)
    assert_refused(scene.rig.machines[0])


def test_signing_a_second_number_leaves_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signatures are genuine, a threshold on each of the views."""
    signed = ClientState.SIGNED
    allow_move(monkeypatch, Trust.MALICIOUS, signed, m.Survivors, signed)
    several(Scene(Trust.MALICIOUS, monkeypatch), second_lists=True)


def test_a_second_number_is_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(Trust.MALICIOUS, monkeypatch)
    with pytest.raises(OutOfOrder):
        several(scene, second_lists=True)
    failed = [machine for machine in scene.rig.machines.values() if machine.state is ClientState.FAILED]
    assert len(failed) == 1
    assert_refused(failed[0])


def test_signatures_on_another_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one are told of one drop-out less; their quorum does not confirm what the one was told."""
    scene = Scene(Trust.MALICIOUS, monkeypatch)
    cheated = NoisySum(scene.rig, scene.cohort, scene.rig.query(scene.cohort, 0, scene.cohort.ids))
    cheated.ask(HONEST)
    cheated.tell(HONEST[1:], scene.cohort.ids[1:])
    cheated.tell([0], scene.cohort.ids)
    with pytest.raises(BadSignature):
        cheated.confirm([0], scene.cohort.ids, cheated.signatures_on(scene.cohort.ids[1:]))
    assert_refused(scene.rig.machines[0])
    assert cheated.seeds(1) == {}


# --- twice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_second_number_after_the_first_leaves_too_little(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two guards are off: the machine stays in the sum it revealed, and the vault keeps its shares."""
    keep_question(monkeypatch)
    keep_secrets(monkeypatch)
    scene = Scene(trust, monkeypatch)
    cheated = claim_twice(scene.rig, scene.cohort, ALIVE, colluders=scene.colluders)
    scene.check_total(cheated, honest(ALIVE), LAYERS)
    assert cheated.noise_left(honest(ALIVE)) < 1


@pytest.mark.parametrize("trust", BOTH)
def test_a_second_number_is_out_of_order(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(trust, monkeypatch)
    with pytest.raises(OutOfOrder):
        claim_twice(scene.rig, scene.cohort, ALIVE, colluders=scene.colluders)
    assert_refused(scene.rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_the_vault_alone_refuses_a_second_number(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_question(monkeypatch)
    scene = Scene(trust, monkeypatch)
    with pytest.raises(SecretReused):
        claim_twice(scene.rig, scene.cohort, ALIVE, colluders=scene.colluders)
    assert_refused(scene.rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_survivors_of_an_earlier_sum_are_out_of_order(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that was right for one sum is not taken for another."""
    scene = Scene(trust, monkeypatch)
    rig, cohort = scene.rig, scene.cohort
    scene.claim(cohort.ids)
    later = NoisySum(rig, cohort, rig.query(cohort, 1, cohort.ids, payload=b"later", round_number=1))
    later.ask(HONEST)
    with pytest.raises(OutOfOrder, match="speaks of sum 0 during sum 1"):
        rig.send(0, rig.survivors(cohort, 0, cohort.ids))
    assert_refused(rig.machines[0])


# --- rosters ---------------------------------------------------------------------------------------

WIDE = NoiseAssumptions(clients=SIZE, dropouts=5, colluders=1, removable=True)  # needs a roster of seven
SMALL = range(6)


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("removable", [True, False])
def test_a_roster_in_which_nobody_is_sure_to_stay_is_refused(
    trust: Trust, removable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(trust, monkeypatch, promise=replace(WIDE, removable=removable))
    with pytest.raises(FewContributors, match="a roster of 6; the noise needs 7 clients"):
        scene.rig.send(0, scene.rig.query(scene.cohort, 0, SMALL))
    assert_refused(scene.rig.machines[0])


def test_without_the_check_such_a_roster_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: what the sum would cost cannot be said, so it is not answered either."""
    monkeypatch.setattr(client_checks, "check_noise_roster", allow)
    scene = Scene(Trust.CURIOUS, monkeypatch, promise=WIDE)
    with pytest.raises(ParameterError, match="planned for 7 to 9 clients, not for 6"):
        scene.rig.send(0, scene.rig.query(scene.cohort, 0, SMALL))
    assert_refused(scene.rig.machines[0])


def test_without_the_check_a_larger_roster_still_leaves_what_was_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defence in depth: it is about bits, which were planned for fewer clients, and not about noise.

    Of a sum that has a part without noise, nobody computes the price.
    """
    monkeypatch.setattr(client_checks, "check_noise_roster", allow)
    promise = replace(PROMISE, clients=SIZE - 1)
    scene = Scene(Trust.CURIOUS, monkeypatch, promise=promise, bare=True)
    monkeypatch.setattr(Rig, "answer", answer_with_bare_part)
    cheated = scene.claim(ALIVE)
    scene.check_total(cheated, honest(ALIVE), promise.surplus(SIZE, len(ALIVE)))
    assert cheated.noise_left(honest(ALIVE)) >= 1


def answer_with_bare_part(rig: Rig, member: int, _: object = None) -> m.MaskedInput:
    frame = rig.machines[member].answer(0, {PART: rig.vectors[member], "bare": [1]}).frame
    message = m.decode(frame, sender=member, limit=1 << 30)
    assert isinstance(message, m.MaskedInput)
    return message


@pytest.mark.parametrize("trust", BOTH)
def test_a_roster_larger_than_planned_is_refused(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(trust, monkeypatch, promise=replace(PROMISE, clients=SIZE - 1))
    with pytest.raises(LargeCohort, match="a roster of 9; the noise is planned for 8 clients"):
        scene.rig.send(0, scene.rig.query(scene.cohort, 0, scene.cohort.ids))
    assert_refused(scene.rig.machines[0])


# --- clients that lie about noise ------------------------------------------------------------------

BAD = 0  # first in every order: its shares are the first ones tried
CLIENTS = range(7)
HELD = NoiseAssumptions(clients=len(CLIENTS), dropouts=2, colluders=1, removable=True)


class Arena:
    """A real server and seven clients, one of them bad; who is `absent` misses the first sum."""

    def __init__(
        self,
        trust: Trust,
        patch: pytest.MonkeyPatch,
        bad: type[ClientMachine],
        *,
        absent: Collection[int] = (),
    ) -> None:
        self.rig = rig = Rig(len(CLIENTS), trust, corrupt=1, sums=2, table=noise_table(HELD, times=2))
        self.client = rig.machines[BAD] = bad(
            member=BAD,
            table=rig.table,
            policy=rig.policy,
            memory=rig.memories[BAD],
            identity=rig.identity(BAD) if rig.registry else None,
            registry=rig.registry,
        )
        server = ServerMachine(
            table=rig.table,
            params=SessionParams(
                trust=trust,
                sums=rig.sums,
                corrupt=1,
                dropout=0,
                min_cohort=3,
                max_cohort=len(CLIENTS),
                min_contributors=3,
            ),
            registry=rig.registry,
        )
        self.witness = Witness(patch)
        self.session = LocalSession(
            server,
            rig.machines,
            lambda member, _: {PART: rig.vectors[member] % (1 + LIMIT)},
            absent=lambda member, stage, k: (stage, k) == (Stage.MASK, 0) and member in absent,
        )
        self.session.open()
        self.witness.look(rig.machines)

    def check_exact(self, sum_index: int, contributors: Sequence[int], *, roster: int = len(CLIENTS)) -> None:
        """The next sum is the one that the witness saw."""
        total = self.session.ask(KIND, b"%d" % sum_index, round_number=sum_index)
        layers = HELD.surplus(roster, len(contributors))
        assert layers or len(contributors) == roster - HELD.dropouts
        assert same(total.parts, self.witness.total(sum_index, contributors, layers).parts)

    def convicted(self) -> dict[int, type[PeerError]]:
        """Who was convicted, and of what. If messages are signed, the evidence is examined."""
        events = [event for event in self.session.events if isinstance(event, Convicted)]
        for event in events if self.rig.registry is not None else ():
            assert event.evidence is not None
            self.examine(event.evidence)
        return {event.peer: type(event.error) for event in events}

    def examine(self, evidence: Evidence) -> None:
        assert self.rig.registry is not None
        examine(evidence, registry=self.rig.registry, table=self.rig.table, corrupt=1)

    def excluded(self) -> dict[int, type[PeerError]]:
        events = [event for event in self.session.events if isinstance(event, Excluded)]
        return {event.peer: type(event.error) for event in events}


def believe_noise(patch: pytest.MonkeyPatch) -> None:
    """Commitments to seeds of noise are not looked at; those to masks are."""
    original = Tally._matches

    def matches(self: Tally, position: int, layer: int, secret: bytes) -> bool:
        return layer > 0 or original(self, position, layer, secret)

    patch.setattr(Tally, "_matches", matches)


@pytest.mark.parametrize("trust", BOTH)
def test_believed_shares_of_another_seed_forge_the_total(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise leaves the hidden count alone: the commitment is the one guard. The dealer knows the shift."""
    believe_noise(monkeypatch)
    arena = Arena(trust, monkeypatch, NoiseForger)
    forged = arena.session.ask(KIND, b"0")[PART]
    layers, witness, client = HELD.surplus(7, 7), arena.witness, arena.client
    assert isinstance(client, NoiseForger)
    shift = np.zeros(4, np.int64)
    for layer in layers:
        shift += witness.noise(0, BAD, layer, client.published[0][layer - 1])[0]
        shift -= witness.noise(0, BAD, layer, client.decoys[0][layer - 1])[0]
    assert shift.any()
    honest_total = witness.total(0, CLIENTS, layers)[PART]
    assert (forged == honest_total + shift / 64).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_dealer_of_another_seed_costs_one_sum_and_its_place(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(trust, monkeypatch, NoiseForger)
    with pytest.raises(Unrecoverable) as caught:
        arena.session.ask(KIND, b"0")
    assert [error.peer for error in caught.value.liars] == [BAD]
    assert not any(isinstance(event, SumReleased) for event in arena.session.events)
    assert arena.excluded() == arena.convicted() == {BAD: FalseDealing}
    arena.check_exact(1, CLIENTS[1:], roster=6)


@pytest.mark.parametrize("trust", BOTH)
def test_a_dealer_that_dropped_out_is_not_asked_for_its_noise(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(trust, monkeypatch, NoiseForger, absent=[BAD])
    arena.check_exact(0, CLIENTS[1:])
    assert arena.excluded() == {}


def test_a_dealer_that_draws_other_noise_moves_the_total_by_its_own_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may add what it likes in any sum. Commitments and shares agree, and nobody is blamed."""
    arena = Arena(Trust.CURIOUS, monkeypatch, NoiseSwapper)
    arena.check_exact(0, CLIENTS)
    assert arena.excluded() == {}
    client = arena.client
    assert isinstance(client, NoiseSwapper)
    assert client.decoys[0] != client.published[0]


@pytest.mark.parametrize("trust", BOTH)
def test_wrong_shares_of_noise_are_left_out_and_convict_their_holder(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(trust, monkeypatch, NoiseLiar)
    arena.check_exact(0, CLIENTS)
    assert arena.excluded() == arena.convicted() == {BAD: WrongShare}
    arena.check_exact(1, CLIENTS[1:], roster=6)


@pytest.mark.parametrize("trust", BOTH)
def test_without_tags_wrong_shares_of_noise_convict_honest_dealers(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_tags(monkeypatch)
    arena = Arena(trust, monkeypatch, NoiseLiar)
    with pytest.raises(Unrecoverable):
        arena.session.ask(KIND, b"0")
    assert arena.excluded() == dict.fromkeys(CLIENTS, FalseDealing)


@pytest.mark.parametrize("trust", BOTH)
def test_believed_wrong_shares_of_noise_forge_the_total(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two guards overlap: the tags of shares, and the commitments to seeds."""
    believe_noise(monkeypatch)
    believe_tags(monkeypatch)
    arena = Arena(trust, monkeypatch, NoiseLiar)
    forged = arena.session.ask(KIND, b"0").parts
    assert not same(forged, arena.witness.total(0, CLIENTS, HELD.surplus(7, 7)).parts)


@pytest.mark.parametrize("trust", BOTH)
def test_shares_of_an_earlier_sum_are_wrong_shares(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(trust, monkeypatch, ReplayingHolder)
    arena.check_exact(0, CLIENTS)
    assert arena.excluded() == {}
    arena.check_exact(1, CLIENTS)
    assert arena.excluded() == arena.convicted() == {BAD: WrongShare}


class Reshaper(RevealingClient):
    """Reveals what `reshape` makes of its shares."""

    reshape: Callable[[bytes], bytes]

    def change(self, reveal: m.Reveal) -> m.Reveal:
        return replace(reveal, shares=type(self).reshape(reveal.shares))


RESHAPED: list[Callable[[bytes], bytes]] = [
    lambda shares: shares[:-33],  # one share less, and one more
    lambda shares: shares + shares[:33],
    lambda shares: shares[: 7 * 33],  # as if there were no noise
    lambda shares: shares + shares,
]


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("reshape", RESHAPED)
def test_too_few_or_too_many_shares_exclude_their_sender_alone(
    trust: Trust, reshape: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reshaper, "reshape", staticmethod(reshape), raising=False)
    arena = Arena(trust, monkeypatch, Reshaper)
    arena.check_exact(0, CLIENTS)
    assert arena.excluded() == {BAD: MalformedMessage}

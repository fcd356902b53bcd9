"""What liars cost, in numbers: a false count costs one sum, wrong shares cost none, and false words cost one
sum and one honest client. Sums go on, exact, while enough clients are left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
import pytest

from secagg import errors
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_budget import sum_charge
from secagg.client_memory import Memory, VolatileMemory
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.events import Convicted, Excluded
from secagg.hybrid_keys import KeyAgreement
from secagg.insecure_seeds import insecure_server_hooks
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.noise.zcdp_cost import Adjacency
from secagg.query_context import Question
from secagg.session_params import SessionParams
from secagg.sum_spec import COUNT_BYTES, Count, Part, SumSpec, Table
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import UnreadableDealer
from tests.attacks.attackers.liars import AnsweringClient, ShareLiar, WordLiar, corrupted
from tests.attacks.court import TABLE, Court
from tests.secagg.noisy import Witness, same

Liars: TypeAlias = Mapping[int, tuple[type[ClientMachine], dict[str, Any]]]
COMPLETE, RING = "complete", "ring"
SIZES: Final = [  # of n = 50 clients, each signs 50 times: that takes seconds
    (Trust.CURIOUS, COMPLETE, 10, 1),
    (Trust.MALICIOUS, COMPLETE, 10, 1),
    (Trust.CURIOUS, RING, 10, 1),
    pytest.param(Trust.CURIOUS, COMPLETE, 50, 5, marks=pytest.mark.slow),
    pytest.param(Trust.MALICIOUS, COMPLETE, 50, 5, marks=pytest.mark.slow),
    (Trust.CURIOUS, RING, 50, 5),
]
sizes = pytest.mark.parametrize(("trust", "graph", "size", "corrupt"), SIZES)


class LongCourt(Court):
    """A court with a table and a number of sums of its own, and clients whose memories can be read."""

    def __init__(
        self,
        trust: Trust,
        size: int,
        corrupt: int,
        liars: Liars,
        *,
        table: Table = TABLE,
        seed: bytes = b"",
        **settings: Any,
    ) -> None:
        terms: dict[str, Any] = {"trust": trust, "corrupt": corrupt, "dropout": Fraction(1, 10), "sums": 3}
        self.members, self.corrupt, self.liars = range(1, size + 1), corrupt, set(liars)
        self.memories: dict[int, Memory] = {k: VolatileMemory() for k in self.members}
        self.server, self.clients = local_machines(
            table=table,
            params=SessionParams(**terms | settings, max_cohort=size),
            members=self.members,
            memories=self.memories,
            server_hooks=insecure_server_hooks(seed),
        )
        self.clients |= {k: corrupted(self.clients[k], kind, **lie) for k, (kind, lie) in liars.items()}
        self.session = LocalSession(self.server, self.clients, self._answer)
        self.session.open()
        self._round = -1

    def send_home(self, members: Iterable[int]) -> None:
        for member in members:
            self.server.drop(member)


# --- a bit of the hidden count ---------------------------------------------------------------------

LIAR: Final = 3


class BitFlipper(AnsweringClient):
    """Flips one `bit` of its masked count."""

    bit: int

    def change(self, answer: m.MaskedInput, question: Question) -> m.MaskedInput:
        count = int.from_bytes(answer.data[-COUNT_BYTES:], "little") ^ 1 << self.bit
        return replace(answer, data=answer.data[:-COUNT_BYTES] + count.to_bytes(COUNT_BYTES, "little"))


def flipper(bit: int) -> Liars:
    return {LIAR: (BitFlipper, {"bit": bit})}


@sizes
@pytest.mark.parametrize("bit", [0, pytest.param(63, marks=pytest.mark.slow)])
def test_a_flipped_bit_costs_one_sum(trust: Trust, graph: str, size: int, corrupt: int, bit: int) -> None:
    """The liar is named after one sum, and the next is that of the honest inputs."""
    court = LongCourt(trust, size, corrupt, flipper(bit), graph=graph)
    with pytest.raises(errors.CorruptTotal):
        court.ask()
    assert court.convicted == court.excluded == {LIAR: errors.FalseCount}
    court.check_verdicts()
    honest = [k for k in court.members if k != LIAR]
    for _ in range(2):
        court.ask()
        assert list(court.session.contributors) == honest


def noisy_table(size: int, corrupt: int) -> Table:
    """A sum that a client is charged rho for."""
    noise = Noise(scale=4, variance=Fraction(5000))
    part = Part(name="x", size=5, bits=40, bound=Count(1 << 12), noise=noise)
    promise = NoiseAssumptions(clients=size, dropouts=size // 10, colluders=corrupt, removable=True)
    return Table({"sum": SumSpec(parts=(part,), promise=promise)})


@sizes
def test_a_flipped_bit_costs_the_rho_of_one_sum(
    trust: Trust, graph: str, size: int, corrupt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An honest client spends as much as for the totals that are released, and once more."""
    table, witness = noisy_table(size, corrupt), Witness(monkeypatch)
    court = LongCourt(trust, size, corrupt, flipper(1), table=table, graph=graph)
    witness.look(court.clients)
    with pytest.raises(errors.CorruptTotal):
        court.session.ask("sum", b"", round_number=0)
    for index in (1, 2):
        total = court.session.ask("sum", b"%d" % index, round_number=index)
        honest = set(court.members) - {LIAR}
        assert set(court.session.contributors) == honest
        layers = witness.questions[index].surplus(len(honest))
        assert layers  # some noise is removed
        assert same(total.parts, witness.total(index, honest, layers).parts)
    charges = [
        sum_charge(table["sum"], roster=roster, adjacency=Adjacency.ZERO_OUT)
        for roster in (size, size - 1, size - 1)
    ]
    spent = {memory.spend.charge for k, memory in court.memories.items() if k != LIAR}
    assert spent == {sum(filter(None, charges))}
    assert all(charges)


# --- wrong shares for chosen dealers ---------------------------------------------------------------


class LateShareLiar(ShareLiar):
    """Reveals wrong shares of `dealers` from the sum `since` on. `told` says whether any was asked for."""

    since: int
    told: bool = False

    def change(self, reveal: m.Reveal) -> m.Reveal:
        asked = {self._cohort.ids[position] for position in self._asked}
        if reveal.sum_index < self.since or asked.isdisjoint(self.dealers):
            return reveal
        self.told = True
        return super().change(reveal)


def share_liars(size: int, corrupt: int) -> Liars:
    """Liars with the ids from 1 on: half lie in the first sum and half in the second, each about two honest
    dealers. The last one lies about the first, which is convicted by then, so that its lie does not show."""
    liars: dict[int, tuple[type[ClientMachine], dict[str, Any]]] = {
        k: (LateShareLiar, {"dealers": [size - k, size - 2 * k], "since": k % 2}) for k in range(2, corrupt)
    }
    first, last = {"dealers": range(corrupt + 1, size), "since": 0}, {"dealers": [1], "since": 1}
    return {1: (LateShareLiar, first), **liars, corrupt: (LateShareLiar, last)}


@pytest.mark.parametrize(
    ("size", "corrupt"), [(20, 5), (30, 8), pytest.param(100, 20, marks=pytest.mark.slow)]
)
def test_wrong_shares_of_chosen_dealers_cost_no_sum_and_no_honest_client(size: int, corrupt: int) -> None:
    liars = share_liars(size, corrupt)
    court = LongCourt(Trust.MALICIOUS, size, corrupt, liars, sums=4)
    for wave in range(2):
        court.ask()
        told = {k for k in liars if k < corrupt and (k % 2 == 0 or k == 1 or wave)}
        assert court.convicted == court.excluded == dict.fromkeys(told, errors.WrongShare)
        assert {k for k, client in court.clients.items() if getattr(client, "told", False)} == told
    court.check_verdicts()
    check_goes_on_while_enough_are_left(court)


def check_goes_on_while_enough_are_left(court: LongCourt) -> None:
    """With as many clients as open a secret, sums are exact. With one fewer, there is none."""
    threshold = court.server._topology.threshold
    *spare, last = court.server.members[: 1 - threshold]
    court.send_home(spare)
    court.ask()
    assert len(court.session.contributors) == threshold
    court.send_home([last])
    with pytest.raises(errors.TooFewClients):
        court.ask()


# --- false words -----------------------------------------------------------------------------------


def check_words(
    trust: Trust, liars: Mapping[int, dict[str, Any]], *, most: int, **settings: Any
) -> LongCourt:
    """At most `most` sums fail, and then all are exact over all that are left. No honest client is convicted,
    and each that is excluded is in dispute with a liar of its own, which is excluded too."""
    court = LongCourt(trust, 40, 4, {k: (WordLiar, lie) for k, lie in liars.items()}, **settings)
    failed = 0
    while not court.session.contributors:
        try:
            court.ask_all()
        except errors.Disputed:
            failed += 1
    assert 1 <= failed <= most
    court.ask_all()
    court.check_verdicts()
    found = [event.error for event in court.session.events if isinstance(event, Excluded)]
    rivals = {each.peer: each.other for each in found if isinstance(each, errors.Dispute)}
    honest = rivals.keys() - court.liars
    assert {rivals[rivals[k]] for k in honest} == honest == court.excluded.keys() - court.liars
    assert {rivals[k] for k in honest} <= court.liars
    return court


# The honest clients (or a liar) that each liar contradicts -> who is excluded.
DISPUTES: Final[dict[str, tuple[dict[int, list[int]], set[int]]]] = {
    "one each": ({1: [11], 2: [12], 3: [13], 4: [14]}, {1, 2, 3, 4, 11, 12, 13, 14}),
    "the same one": ({k: [11] for k in (1, 2, 3, 4)}, {1, 11}),
    "as many as may lie": ({k: [11, 12, 13, 14] for k in (1, 2, 3, 4)}, {1, 2, 3, 4, 11, 12, 13, 14}),
    "a liar too": ({1: [11], 3: [15], 4: [3, 16]}, {1, 11, 3, 4}),
}


SIGNED = pytest.param(Trust.MALICIOUS, marks=pytest.mark.slow)  # 20 clients sign everything


@pytest.mark.parametrize("trust", [Trust.CURIOUS, SIGNED])
@pytest.mark.parametrize("case", DISPUTES)
def test_a_liar_about_words_takes_at_most_one_honest_client_along(trust: Trust, case: str) -> None:
    """A liar that has nobody left to contradict stays: its input is as good as any."""
    targets, excluded = DISPUTES[case]
    court = check_words(trust, {k: {"targets": honest} for k, honest in targets.items()}, most=1)
    assert court.excluded.keys() == excluded
    assert court.convicted == {}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("lies", [1, 4])
def test_on_a_ring_a_liar_about_words_takes_at_most_one_honest_client_along(seed: int, lies: int) -> None:
    """Liars contradict their first neighbours on rings of different order, some of which are liars too. If
    others have excluded them, they contradict the next ones. The ring withstands the loss of a quarter."""
    liars = {k: {"first": lies} for k in (1, 2, 3, 4)}
    settings: dict[str, Any] = {"graph": RING, "dropout": Fraction(1, 4), "sums": 6}
    check_words(Trust.CURIOUS, liars, most=len(liars), seed=b"%d" % seed, **settings)


@pytest.mark.parametrize("agreement", list(KeyAgreement))
def test_a_dealer_of_unreadable_shares_is_found_though_too_few_are_left(agreement: KeyAgreement) -> None:
    """Five of seven clients are there. The shares of one open for nobody, which leaves too few for a sum."""
    params = SessionParams(
        trust=Trust.MALICIOUS, corrupt=1, sums=3, max_cohort=7, dropout=0.3, key_agreement=agreement
    )
    server, clients = local_machines(table=TABLE, params=params, members=range(1, 8))
    clients[1] = corrupted(clients[1], UnreadableDealer, spoiled=6)
    session = LocalSession(
        server,
        clients,
        lambda member, asked: {"x": np.arange(5) * member},
        absent=lambda member, stage, index: member in (6, 7) and stage is not Stage.ADVERTISE,
    )
    with pytest.raises(errors.SumFailed):
        ask_once(session)
    assert {event.peer: type(event.error) for event in session.events if isinstance(event, Convicted)} == {
        1: errors.UnreadableShares
    }
    assert session.refusals == {}


def ask_once(session: LocalSession) -> None:
    session.open()
    session.ask("sum", b"q")

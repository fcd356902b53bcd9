"""Seeded machines: repeatable from their seed, different for every member and seed."""

from __future__ import annotations

import pytest

from secagg.client_memory import VolatileMemory
from secagg.insecure_seeds import (
    SeededRandom,
    insecure_client_hooks,
    insecure_rounding,
    insecure_server_hooks,
    seeded_identity,
    seeded_registry,
)
from secagg.local_session import LocalSession, local_machines
from secagg.policy import Policy
from secagg.session_params import SessionParams
from secagg.sum_spec import LInf, Part, SumSpec, Table
from secagg.testing import InsecureSeededClient, InsecureSeededServer
from secagg.trust_levels import Trust
from tests.attacks.rig import residue_table

TABLE = residue_table()
POLICY = Policy(
    trust=Trust.CURIOUS,
    corrupt=0,
    min_cohort=2,
    max_cohort=4,
    min_contributors=2,
    max_sums=2,
    unnoised_sums=2,
)


def server(seed: bytes) -> InsecureSeededServer:
    return InsecureSeededServer(
        seed=seed,
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, sums=2, corrupt=0, max_cohort=4),
    )


def advert(seed: bytes, member: int) -> bytes:
    client = InsecureSeededClient(
        seed=seed, member=member, table=TABLE, policy=POLICY, memory=VolatileMemory()
    )
    (frame,) = client.receive(server(b"server").invitation).frames
    return frame


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 48, 4096])
def test_random_bytes_are_as_many_as_asked_for(count: int) -> None:
    assert len(SeededRandom(b"a")(count)) == count
    assert SeededRandom(b"a")(count) == SeededRandom(b"a")(4096)[:count]


def test_random_bytes_go_on_and_depend_on_every_part_of_the_seed() -> None:
    random = SeededRandom(b"a", b"b")
    drawn = [random(32) for _ in range(4)]
    drawn += [SeededRandom(*seed)(32) for seed in ((b"ab",), (b"a",), (b"b", b"a"), (b"", b"ab"), ())]
    assert len(set(drawn)) == 9


def test_machines_repeat_themselves() -> None:
    assert server(b"s").invitation == server(b"s").invitation != server(b"t").invitation
    assert advert(b"c", 1) == advert(b"c", 1)
    assert len({advert(b"c", 1), advert(b"c", 2), advert(b"d", 1)}) == 3


def test_identities_belong_to_seed_and_member() -> None:
    publics = [seeded_identity(seed, member).public for seed in (b"a", b"b") for member in range(3)]
    assert len(set(publics)) == 6
    registry = seeded_registry(b"a", [0, 2], version=7)
    assert dict(registry.members) == {0: publics[0], 2: publics[2]}
    assert registry.version == 7


def rounded(
    session: bytes, rounding: bytes, payload: bytes = b"a", members: tuple[int, ...] = (0, 1)
) -> float:
    """A total that shows how clients rounded: their values lie between the points of a coarse grid."""
    table = Table({"sum": SumSpec(parts=(Part(name="x", size=64, bits=6, bound=LInf(1.0)),))})
    server, clients = local_machines(
        table=table,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
        members=members,
        server_hooks=insecure_server_hooks(session),
        client_hooks=lambda member: insecure_client_hooks(session, member, rounding=rounding),
    )
    local = LocalSession(server, clients, lambda _member, _asked: {"x": [0.123456] * 64})
    local.open()
    total = local.ask("sum", payload)["x"]
    return hash(total.tobytes())


def test_repeatable_clients_round_the_same_in_every_session() -> None:
    first = rounded(b"session", b"rounding")
    assert rounded(b"another session", b"rounding") == first
    assert rounded(b"session", b"another rounding") != first
    assert rounded(b"session", b"rounding", payload=b"b") != first
    assert rounded(b"session", b"rounding", members=(0, 2)) != first


def test_rounding_depends_on_seed_member_and_question() -> None:
    choices = [(b"s", 1, b"q"), (b"t", 1, b"q"), (b"s", 2, b"q"), (b"s", 1, b"r")]
    words = {insecure_rounding(*choice).words(4).tobytes() for choice in choices}
    assert len(words) == 4
    assert insecure_rounding(*choices[0]).words(4).tobytes() in words

"""Clients that lie on a network: log and ledger of the server name them; the next session goes without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

from secagg.client import ClientMachine
from secagg.errors import CorruptTotal, Disputed
from secagg.events import Convicted
from secagg.hybrid_keys import KeyAgreement
from secagg.ledger import ServerLedger, read_ledger
from secagg.net.settings import Deadlines
from secagg.trust_levels import Trust
from tests.attacks.attackers.liars import CountLiar, DepositLiar, WordLiar
from tests.secagg.net.rig import Network, World, on_network

LIAR = 3


@contextmanager
def lying(kind: type[ClientMachine], **lie: Any) -> Iterator[None]:
    """From now on, client 3 is a liar whenever it joins a session."""

    def make(*, member: int, **settings: Any) -> ClientMachine:
        if member != LIAR:
            return ClientMachine(member=member, **settings)
        liar = kind(member=member, **settings)
        for name, value in lie.items():
            setattr(liar, name, value)
        return liar

    with mock.patch("secagg.net.open_client_and_server.ClientMachine", make):
        yield


@pytest.mark.parametrize("trust", Trust)
def test_the_next_session_is_without_the_liar(trust: Trust, tmp_path: Path) -> None:
    """Neither the log nor the ledger holds what the evidence is made of."""
    found: list[Convicted] = []

    async def main(network: Network) -> None:
        world, path = World(trust=trust), tmp_path / "ledger"
        with ServerLedger.create(path) as ledger:
            async with world.server() as server, world.all_clients():
                note = partial(_collect, found)
                async with world.session(server, ledger=ledger, on_event=note) as session:
                    with pytest.raises(CorruptTotal):
                        await world.ask(session)
                    world.check(await world.ask(session), session, 0, 1, 2)
                assert ledger.barred == {LIAR}
                await server.wait_for_clients(3, barred=ledger.barred)
                left = set(range(4)) - ledger.barred
                async with world.session(
                    server, machine=world.machine(barred=ledger.barred), members=left, expected=3
                ) as session:
                    world.check(await world.ask(session), session, 0, 1, 2)
        _check_traces(world, path, found)

    with lying(CountLiar):
        on_network(main)


def _collect(found: list[Convicted], event: object) -> None:
    found += [event] if isinstance(event, Convicted) else []


def _check_traces(world: World, path: Path, found: list[Convicted]) -> None:
    (event,) = found
    (line,) = world.diary.facts("convicted")
    (row,) = [row.body for row in read_ledger(path).rows if row.body["entry"] == "barred"]
    digest = event.evidence and event.evidence.sha256
    assert (digest is not None) == (world.trust is Trust.MALICIOUS)
    assert line == {"member": LIAR, "offence": "FalseCount", "reason": event.error.why, "evidence": digest}
    assert (row["peer"], row["why"], row["evidence"]) == (LIAR, "FalseCount", digest)
    assert {"member": LIAR, "error": "FalseCount", "reason": event.error.why} in world.diary.facts("excluded")
    if event.evidence is not None:
        written = json.dumps([world.diary, row])
        for secret in event.evidence.values:
            assert secret.hex() not in written


def test_a_machine_that_was_told_admits_no_liar_that_comes_nevertheless() -> None:
    async def main(network: Network) -> None:
        world = World()
        async with world.server() as server, world.all_clients():
            await server.wait_for_clients(4)
            async with world.session(server, machine=world.machine(barred={LIAR})) as session:
                world.check(await world.ask(session), session, 0, 1, 2)
        assert world.diary.members("excluded") == [LIAR]
        assert world.diary.facts("excluded")[0]["error"] == "Barred"

    on_network(main)


def test_both_sides_of_a_dispute_are_named_even_if_one_has_gone() -> None:
    """The liar contradicts client 0, and leaves while the server still waits for client 2."""

    async def main(network: Network) -> None:
        world = World()
        async with (
            world.server() as server,
            world.all_clients(0, 1),
            world.all_clients(LIAR) as scopes,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_never_answer, world, 2)
            await server.wait_for_clients(4)
            async with world.session(server, deadlines=Deadlines(mask=50)) as session:
                nursery.start_soon(_leave_after, 10.0, scopes[LIAR])
                with pytest.raises(Disputed):
                    await world.ask(session)
            nursery.cancel_scope.cancel()
        excluded = {facts["member"]: facts["error"] for facts in world.diary.facts("excluded")}
        assert excluded == {0: "Dispute", LIAR: "Dispute"}
        assert world.diary.members("left") == [LIAR]
        assert not world.diary.facts("convicted")

    with lying(WordLiar, targets=[0]):
        on_network(main)


async def _never_answer(world: World, member: int) -> None:
    async with world.client(member) as client:
        async for _ in client:
            await trio.sleep_forever()


async def _leave_after(seconds: float, scope: trio.CancelScope) -> None:
    await trio.sleep(seconds)
    scope.cancel()


def test_a_false_deposit_costs_nothing_but_its_place() -> None:
    """Its tags contradict those of all others, so the liar is convicted in set-up, without evidence."""

    async def main(network: Network) -> None:
        world = World(trust=Trust.MALICIOUS, agreement=KeyAgreement.HYBRID)
        async with world.server() as server, world.all_clients(), world.session(server) as session:
            assert session.members == (0, 1, 2)
            world.check(await world.ask(session), session, 0, 1, 2)
        (line,) = world.diary.facts("convicted")
        assert (line["member"], line["offence"], line["evidence"]) == (LIAR, "ManyDisputes", None)

    with lying(DepositLiar, targets=[0, 1, 2], in_tag=True):
        on_network(main)


# --- refusals ----------------------------------------------------------------------------------------


def test_who_refuses_an_invitation_is_told_apart_from_who_joins_and_leaves() -> None:
    """Client 2 has another key agreement; client 3 joins, and leaves while others are invited."""

    async def main(network: Network) -> None:
        world, other = World(), World(agreement=KeyAgreement.HYBRID)
        async with (
            world.server() as server,
            world.all_clients(0, 1),
            world.all_clients(3) as scopes,
            other.all_clients(2),
            trio.open_nursery() as nursery,
        ):
            await server.wait_for_clients(4)
            nursery.start_soon(_leave_after, 5.0, scopes[3])
            async with world.session(server, expected=None) as session:
                world.check(await world.ask(session), session, 0, 1)
        (reason,) = other.diaries[2].reasons("refused")
        assert other.diaries[2].facts("refused")[0]["error"] == "WrongKeyAgreement"
        assert "needs x25519+ml-kem-768" in str(reason)
        left = {facts["member"]: str(facts["reason"]) for facts in world.diary.facts("left")}
        assert left.keys() == {2, 3}
        assert "key agreement" in left[2]
        assert left[3] == "left the session"

    on_network(main)

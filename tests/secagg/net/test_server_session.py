"""Sessions on a network: sums are exact whoever comes late, goes, falls silent or comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from secagg import events
from secagg import messages as m
from secagg.cohort_members import invitation_digest
from secagg.errors import LedgerError, StateError, TooFewClients
from secagg.hybrid_keys import KeyAgreement
from secagg.ledger import ServerLedger, read_ledger
from secagg.local_session import Stage
from secagg.net.event_log import EventLog
from secagg.net.events import (
    ConnectionRefused,
    OnServerEvent,
    ServerNetworkEvent,
    SessionBegun,
    SessionClosed,
    StageClosed,
    TrafficCounted,
)
from secagg.net.nursery_and_threads import inline
from secagg.net.packets import PacketKind
from secagg.net.server import Server
from secagg.net.server_session import Session
from secagg.net.settings import Deadlines, Patience
from secagg.trust_levels import Trust
from tests.secagg.net.rig import KIND, Network, World, on_network

DEADLINES = Deadlines(join=100, share=110, mask=120, confirm=130, reveal=140)
PATIENCE = Patience(handshake=10, silence=60, grace=10, farewell=2)


def play(world: World, main: Callable[[World, Network], Awaitable[None]], **settings: Any) -> World:
    on_network(lambda network: main(world, network), **settings)
    return world


# --- whole sessions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize("agreement", KeyAgreement)
def test_session_after_session_every_sum_is_exact(trust: Trust, agreement: KeyAgreement) -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            for _ in range(2):
                async with world.session(server) as session:
                    assert session.members == (0, 1, 2, 3)
                    while session.sums_left:
                        world.check(await world.ask(session), session, 0, 1, 2, 3)
        assert len(network.lines) == 4  # one connection each, for all of it

    world = play(World(trust=trust, agreement=agreement, sums=2), main)
    assert len(world.diary.facts("released")) == 4
    assert [event for event, _ in world.diaries[0]].count("session over") >= 1


def recorder() -> tuple[list[ServerNetworkEvent], OnServerEvent]:
    seen: list[ServerNetworkEvent] = []
    return seen, seen.append


def test_events_tell_of_every_stage_and_add_up_to_all_bytes() -> None:
    seen, on_event = recorder()
    held: list[Session] = []

    async def main(world: World, network: Network) -> None:
        async with (
            world.server(on_event=on_event) as server,
            world.all_clients(),
            world.session(server) as session,
        ):
            held.append(session)
            await world.ask(session)
            await world.ask(session)

    play(World(trust=Trust.MALICIOUS), main)

    stages = [event.stage for event in seen if isinstance(event, StageClosed)]
    assert stages == [Stage.ADVERTISE, Stage.SHARE, *2 * [Stage.MASK, Stage.CONFIRM, Stage.REVEAL]]
    counted = [event for event in seen if isinstance(event, TrafficCounted)]
    for stage in Stage:
        of_stage = [event for event in counted if event.stage is stage]
        assert sum(event.bytes_up for event in of_stage) == held[0].bytes_up[stage]
        assert sum(event.bytes_down for event in of_stage) == held[0].bytes_down[stage]
    ends = [event for event in seen if isinstance(event, SessionBegun | SessionClosed)]
    assert ends == [SessionBegun(), SessionClosed()]
    assert seen.index(ends[0]) < seen.index(counted[0])
    assert seen.index(counted[-1]) < seen.index(ends[1])


def test_a_stage_lasts_until_its_deadline_if_a_client_is_silent() -> None:
    seen, on_event = recorder()

    async def main(world: World, network: Network) -> None:
        async with (
            world.server(on_event=on_event) as server,
            world.all_clients(0, 1, 2),
            world.session(server, expected=None, deadlines=DEADLINES),
        ):
            pass

    play(World(), main)

    first = next(event for event in seen if isinstance(event, StageClosed))
    assert first.stage is Stage.ADVERTISE
    assert first.seconds == pytest.approx(DEADLINES.join)


def test_a_session_begins_at_once_when_those_who_are_expected_are_there() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            began = trio.current_time()
            async with world.session(server):
                assert trio.current_time() < began + 1

    play(World(), main)


def test_without_a_number_it_waits_for_the_deadline() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2):
            began = trio.current_time()
            async with world.session(server, expected=None, deadlines=DEADLINES) as session:
                assert trio.current_time() == pytest.approx(began + DEADLINES.join)
                assert session.members == (0, 1, 2)

    play(World(), main)


def test_too_few_clients_are_no_session() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0):
            with pytest.raises(TooFewClients, match="only 1 clients came"):
                async with world.session(server, deadlines=DEADLINES):
                    raise AssertionError("nobody should get here")
            # The one who came was told, and takes part in the next.
            async with world.all_clients(1), world.session(server, expected=2) as session:
                world.check(await world.ask(session), session, 0, 1)

    world = play(World(), main)
    assert world.diary.reasons("failed") == ["only 1 clients came; 2 are needed"]


def test_whoever_comes_too_late_is_told_and_takes_part_in_the_next_session() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            async with world.session(server, expected=3) as session:
                nursery.start_soon(world.answering, 3)
                await server.wait_for_clients(4)
                world.check(await world.ask(session), session, 0, 1, 2)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    play(World(), main)


def test_an_advertisement_on_its_way_when_the_stage_is_closed_is_answered_by_a_farewell() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1):
            slow = await network.dial(3)
            await slow.welcomed()
            async with world.session(server, expected=2) as session:
                invitation = await slow.frame()
                farewell = m.decode(await slow.frame(), sender="server", limit=1000)
                assert farewell == m.Farewell(invitation_digest(invitation))
                await slow.send_frame(b"too late", seen=1)
                await slow.next(PacketKind.ACK)
                world.check(await world.ask(session), session, 0, 1)

    play(World(), main)


def test_a_session_that_ends_while_it_is_joined_lets_everybody_go() -> None:
    """Even those whose keys were on their way: the next session finds them ready."""

    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            await server.wait_for_clients(4)
            for line in network.lines:
                line.up.capacity = 0  # invitations come through, answers do not
            with trio.move_on_after(30):
                async with world.session(server):
                    raise AssertionError("nobody should get here")
            for line in network.lines:
                line.up.capacity = 1e9
                line.cut()
            async with world.session(server, deadlines=DEADLINES) as session:
                assert session.members == (0, 1, 2, 3)

    play(World(), main)


# --- drop-outs -------------------------------------------------------------------------------------------


class Truant:
    """A client that stops at one message of the server: it stays connected and says nothing more."""

    def __init__(self, world: World, member: int, kind: type[m.Message]) -> None:
        self._world = world
        self._member = member
        self._kind = kind

    async def run(self) -> None:
        async with self._world.client(self._member) as client:
            machine = client._machine
            receive = machine.receive

            def pass_over(frame: bytes, *, now: int | None = None) -> events.ClientStep:
                is_it = m.message_type(frame, sender="server") is self._kind
                return events.ClientStep() if is_it else receive(frame, now=now)

            machine.receive = pass_over  # type: ignore[method-assign]
            async for asked in client:
                await client.answer(asked, self._world.values(self._member, asked))


STAGES = {
    m.Invitation: DEADLINES.join,
    m.KeyList: DEADLINES.share,
    m.Delivery: DEADLINES.share,
    m.Query: DEADLINES.mask,
    m.Survivors: DEADLINES.confirm,
    m.Confirmations: DEADLINES.reveal,
}


@pytest.mark.parametrize("kind", STAGES)
def test_a_client_that_stops_answering_costs_one_deadline_and_no_more(kind: type[m.Message]) -> None:
    """With hybrid keys, whose stages are those of others and one more."""

    async def main(world: World, network: Network) -> None:
        truant = Truant(world, 3, kind)
        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(truant.run)
            await server.wait_for_clients(4)
            began = trio.current_time()
            async with world.session(server, deadlines=DEADLINES) as session:
                total = await world.ask(session)
                assert trio.current_time() == pytest.approx(began + STAGES[kind], abs=1)
                late = kind in (m.Survivors, m.Confirmations)
                world.check(total, session, *((0, 1, 2, 3) if late else (0, 1, 2)))
            nursery.cancel_scope.cancel()

    world = play(World(trust=Trust.MALICIOUS, agreement=KeyAgreement.HYBRID), main)
    if kind is not m.Invitation:
        assert [facts["members"] for facts in world.diary.facts("missing")] == ["3"]


def test_a_client_that_dies_is_waited_for_as_long_as_its_grace() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            world.all_clients(3) as scopes,
            world.session(server) as session,
        ):
            world.check(await world.ask(session), session, 0, 1, 2, 3)
            line = network.line_of(3)
            scopes[3].cancel()  # it says goodbye, but nobody hears it
            line.cut()
            network.up = False
            began = trio.current_time()
            world.check(await world.ask(session), session, 0, 1, 2)
            assert trio.current_time() == pytest.approx(began + PATIENCE.grace, abs=1)

    world = play(World(), main)
    assert {"member": 3, "reason": "lost its connection"} in world.diary.facts("left")


def test_a_client_that_leaves_is_not_waited_for() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(0, 1, 2), world.all_clients(3) as scopes:
            await server.wait_for_clients(4)
            async with world.session(server) as session:
                scopes[3].cancel()
                began = trio.current_time()
                world.check(await world.ask(session), session, 0, 1, 2)
                assert trio.current_time() < began + 1

    world = play(World(), main)
    assert {"member": 3, "reason": "left the session"} in world.diary.facts("left")


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_whoever_goes_while_the_server_computes_is_not_waited_for(how: str) -> None:
    async def main(world: World, network: Network) -> None:
        computing = trio.Event()

        async def slow(function: Callable[[], Any]) -> Any:
            if world.round:
                computing.set()
                await trio.sleep(2 * PATIENCE.grace)
            return await inline(function)

        async with (
            world.server(patience=PATIENCE) as server,
            world.all_clients(0, 1, 2),
            world.all_clients(3) as scopes,
            trio.open_nursery() as nursery,
        ):

            async def go() -> None:
                await computing.wait()
                network.up = False
                network.line_of(3).cut()
                scopes[3].cancel()
                if how == "restarted":
                    await trio.sleep(1)
                    network.up = True
                    world.forget(3)
                    await world.answering(3)

            nursery.start_soon(go)
            async with world.session(server, work=slow, deadlines=DEADLINES) as session:
                began = trio.current_time()
                world.check(await world.ask(session), session, 0, 1, 2, 3)
                assert trio.current_time() == pytest.approx(began + 4 * PATIENCE.grace, abs=1)
                assert session.members == (0, 1, 2)
            nursery.cancel_scope.cancel()

    play(World(), main)


def test_too_many_drop_outs_fail_the_sum_and_not_the_session() -> None:
    async def main(world: World, network: Network) -> None:
        lazy = {2, 3}

        async def fickle(member: int) -> None:
            async with world.client(member) as client:
                async for asked in client:
                    if asked.round > 1 or member not in lazy:
                        await client.answer(asked, world.values(member, asked))

        async with world.server() as server, trio.open_nursery() as nursery:
            for member in range(4):
                nursery.start_soon(fickle, member)
            machine = world.machine(dropout=0.25, min_contributors=3, min_cohort=3)
            async with world.session(server, machine=machine, deadlines=DEADLINES) as session:
                with pytest.raises(TooFewClients, match="only 2 clients sent inputs"):
                    await world.ask(session)
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert len(world.diary.facts("aborted")) == 1


def test_a_client_that_sits_out_is_not_in_the_total() -> None:
    async def main(world: World, network: Network) -> None:
        async def sitting() -> None:
            async with world.client(3) as client:
                async for asked in client:
                    assert await client.decline(asked)
                    assert not await client.decline(asked)

        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            nursery.start_soon(sitting)
            await server.wait_for_clients(4)
            began = trio.current_time()
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2)
            assert trio.current_time() < began + 1
            nursery.cancel_scope.cancel()

    play(World(), main)


# --- what the owner does ---------------------------------------------------------------------------------


def test_a_sum_that_is_cancelled_is_abandoned_and_the_session_goes_on() -> None:
    async def main(world: World, network: Network) -> None:
        first = trio.Event()

        async def patient(member: int) -> None:
            async with world.client(member) as client:
                async for asked in client:
                    if asked.round == 1:
                        first.set()
                        continue
                    await client.answer(asked, world.values(member, asked))

        async with world.server() as server, trio.open_nursery() as nursery:
            for member in range(4):
                nursery.start_soon(patient, member)
            async with world.session(server) as session:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as inner:
                        inner.start_soon(world.ask, session)
                        await first.wait()
                        await trio.sleep(1)
                        scope.cancel()
                assert scope.cancelled_caught
                world.check(await world.ask(session), session, 0, 1, 2, 3)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert world.diary.reasons("aborted") == ["abandoned by the server's owner"]
    for member in range(4):
        assert len(world.diaries[member].facts("abandoned")) == 1


def test_a_sum_can_be_cancelled_at_the_very_moment_at_which_everybody_has_answered() -> None:
    async def main(world: World, network: Network) -> None:
        def cancel_first(event: events.ServerEvent) -> None:
            if isinstance(event, events.StageFull) and world.round == 1:
                scope.cancel()

        scope = trio.CancelScope()
        async with (
            world.server() as server,
            world.all_clients(),
            world.session(server, on_event=cancel_first) as session,
        ):
            with scope:
                await world.ask(session)
            assert scope.cancelled_caught
            world.check(await world.ask(session), session, 0, 1, 2, 3)

    play(World(), main)


def test_a_second_question_at_the_same_time_is_refused_and_the_first_is_unharmed() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server() as server,
            world.all_clients(),
            world.session(server) as session,
            trio.open_nursery() as nursery,
        ):

            async def meddle() -> None:
                with pytest.raises(StateError, match="masking"):
                    await session.ask(KIND, b"second", round_number=9)

            nursery.start_soon(meddle)
            nursery.start_soon(meddle)
            world.check(await world.ask(session), session, 0, 1, 2, 3)

    play(World(), main)


def test_a_session_that_its_owner_leaves_tells_everybody() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients():
            with pytest.raises(KeyError, match="the owner's"):
                async with world.session(server):
                    raise KeyError("the owner's")
            for member in range(4):
                await world.diaries[member].has("session over")
            async with world.session(server) as session:
                world.check(await world.ask(session), session, 0, 1, 2, 3)

    play(World(), main)


def test_a_sum_under_way_is_abandoned_with_its_session() -> None:
    async def main(world: World, network: Network) -> None:
        async def mute(member: int) -> None:
            async with world.client(member) as client:
                async for _asked in client:
                    pass

        async with world.server() as server, trio.open_nursery() as nursery:
            for member in range(4):
                nursery.start_soon(mute, member)
            with trio.move_on_after(50):
                async with world.session(server) as session:
                    await world.ask(session)
            for member in range(4):
                await world.diaries[member].has("session over")
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert len(world.diary.facts("aborted")) == 1
    assert not world.diary.facts("released")


def test_a_sum_that_outlives_its_session_is_abandoned_and_fails() -> None:
    async def main(world: World, network: Network) -> None:
        async def outliving(session: Session) -> None:
            with pytest.raises(StateError, match="ended"):
                await world.ask(session)

        async def mute(member: int) -> None:
            async with world.client(member) as client:
                async for _asked in client:
                    pass

        async with world.server() as server, trio.open_nursery() as nursery:
            for member in range(4):
                nursery.start_soon(mute, member)
            async with trio.open_nursery() as asking, world.session(server) as session:
                asking.start_soon(outliving, session)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

    world = play(World(), main)
    assert len(world.diary.facts("aborted")) == 1


def test_a_server_has_one_session_at_a_time() -> None:
    async def main(world: World, network: Network) -> None:
        async with world.server() as server, world.all_clients(), world.session(server) as session:
            with pytest.raises(StateError, match="one session at a time"):
                async with world.session(server):
                    raise AssertionError("nobody should get here")
            world.check(await world.ask(session), session, 0, 1, 2, 3)

    play(World(), main)


def test_an_observer_sees_every_event_and_the_session_counts_bytes() -> None:
    seen: list[events.ServerEvent] = []

    async def main(world: World, network: Network) -> None:
        machine = world.machine()
        async with (
            world.server() as server,
            world.all_clients(),
            world.session(server, machine=machine, on_event=seen.append) as session,
        ):
            await world.ask(session)
            stages = {Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.REVEAL}
            assert set(session.bytes_up) == set(session.bytes_down) == stages
            assert session.bytes_up[Stage.MASK] > 4 * world.table[KIND].packed_bytes
            assert session.bytes_down[Stage.ADVERTISE] == 4 * len(machine.invitation)

    play(World(), main)
    kinds = [type(event) for event in seen]
    assert kinds.count(events.SessionReady) == kinds.count(events.SumReleased) == 1


def test_what_was_released_is_written_even_if_strangers_have_filled_the_log() -> None:
    async def main(world: World, network: Network) -> None:
        log = EventLog(world.diary)
        async with (
            world.server(on_event=log) as server,
            world.all_clients(),
            world.session(server) as session,
        ):
            for number in range(10_000):
                log(ConnectionRefused(str(number), "reason"))
            world.check(await world.ask(session), session, 0, 1, 2, 3)

    world = play(World(), main)
    assert len(world.diary.facts("released")) == 1


# --- ledgers ---------------------------------------------------------------------------------------------


def rows(path: Path) -> list[str]:
    return [row.body["entry"] for row in read_ledger(path).rows]


def test_a_ledger_has_a_row_for_everything_that_was_asked_and_released(tmp_path: Path) -> None:
    path = tmp_path / "ledger"

    async def main(world: World, network: Network) -> None:
        with ServerLedger.create(path) as ledger:
            async with world.server() as server, world.all_clients():
                for _ in range(2):
                    async with world.session(server, ledger=ledger) as session:
                        await world.ask(session)

    play(World(), main)
    assert rows(path)[1:] == ["session", "asked", "released"] * 2


class FullDisk:
    """A ledger that cannot be written from some event on."""

    def __init__(self, kind: type | None) -> None:
        self._kind = kind

    def note_asked(self, frame: bytes, table: object) -> None:
        if self._kind is None:
            raise LedgerError("disk full")

    def note(self, event: events.ServerEvent) -> None:
        if self._kind is not None and isinstance(event, self._kind):
            raise LedgerError("disk full")


def test_what_cannot_be_written_down_is_not_asked() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server() as server,
            world.all_clients(),
            world.session(server, ledger=FullDisk(None)) as session,
        ):
            with pytest.raises(LedgerError, match="disk full"):
                await world.ask(session)

    world = play(World(), main)
    assert not world.diaries[0].facts("asked")
    assert len(world.diary.facts("aborted")) == 1


def test_what_cannot_be_written_down_is_not_released() -> None:
    async def main(world: World, network: Network) -> None:
        async with (
            world.server() as server,
            world.all_clients(),
            world.session(server, ledger=FullDisk(events.SumReleased)) as session,
        ):
            with pytest.raises(LedgerError, match="disk full"):
                await world.ask(session)
            assert session.contributors == ()

    play(World(), main)


@pytest.mark.parametrize("during", ["set-up", "rest", "sum"])
def test_a_ledger_that_fails_while_a_frame_is_taken_in_fails_its_owner(during: str) -> None:
    """Not the connection on which the frame came, nor the whole server."""

    async def main(world: World, network: Network) -> None:
        moment = trio.Event()

        async def babbling() -> None:
            async with world.client(3) as client:
                if during != "set-up":
                    await anext(client) if during == "sum" else await moment.wait()
                else:
                    await world.diary.has("connected", 4)
                    await trio.sleep(1)
                client._link.send(b"nonsense")
                await trio.sleep_forever()

        async def conduct(server: Server) -> None:
            expected = None if during == "set-up" else 4  # None keeps it waiting for more
            async with world.session(server, ledger=FullDisk(events.Excluded), expected=expected) as session:
                moment.set()
                await trio.sleep(1)
                await world.ask(session)

        async with world.server() as server, world.all_clients(0, 1, 2), trio.open_nursery() as nursery:
            nursery.start_soon(babbling)
            began = trio.current_time()
            with pytest.raises(LedgerError, match="disk full"):
                await conduct(server)
            assert trio.current_time() < began + 10  # it does not wait for a deadline
            assert bool(world.diaries[0].facts("asked")) == (during == "sum")
            nursery.cancel_scope.cancel()
            async with world.session(server, expected=3) as session:
                world.check(await world.ask(session), session, 0, 1, 2)

    play(World(), main)


def test_who_finds_the_cohort_full_is_not_to_blame_and_comes_next_time() -> None:
    async def main(world: World, network: Network) -> None:
        all_clients = range(6)
        async with world.server() as server, world.all_clients(*all_clients):
            await server.wait_for_clients(6)
            async with world.session(server, machine=world.machine(max_cohort=3)) as session:
                assert len(session.members) == 3
                world.check(await world.ask(session), session, *session.members)
                assert server.connected == tuple(all_clients)
            async with world.session(server) as session:
                world.check(await world.ask(session), session, *all_clients)

    world = play(World(clients=6), main)
    assert not world.diary.facts("excluded")
    assert len(world.diary.facts("left")) == 3

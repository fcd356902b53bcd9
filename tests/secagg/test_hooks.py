"""Hooks of the machines: what they are told, what they may change, and that they can stop a message."""

from __future__ import annotations

import pytest

from secagg import messages as m
from secagg.local_session import LocalSession, local_machines
from secagg.machine_hooks import ClientHooks, ServerHooks
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust

TABLE = Table({"sum": SumSpec(parts=(Part(name="x", size=2, bits=16, bound=Count(100)),))})
MEMBERS = (0, 1, 2)


def session(server: ServerHooks, client: ClientHooks) -> LocalSession:
    machines = local_machines(
        table=TABLE,
        params=SessionParams(trust=Trust.CURIOUS, corrupt=0),
        members=MEMBERS,
        server_hooks=server,
        client_hooks=lambda member: client if member == 0 else ClientHooks(),
    )
    return LocalSession(*machines, lambda member, _asked: {"x": [member, 1]})


def test_the_server_reports_stages_and_the_messages_that_it_accepted() -> None:
    stages: list[ServerState] = []
    accepted: list[tuple[int, type[m.Message]]] = []
    hooks = ServerHooks(
        on_stage=stages.append, on_message=lambda sender, message: accepted.append((sender, type(message)))
    )
    local = session(hooks, ClientHooks())
    local.open()
    local.ask("sum")
    ready = ServerState.READY
    assert stages == [ServerState.SHARING, ready, ServerState.MASKING, ServerState.UNMASKING, ready]
    for kind in (m.Advertisement, m.Shares, m.MaskedInput, m.Reveal):
        assert [sender for sender, each in accepted if each is kind] == list(MEMBERS)
    assert local._server.sums_asked == 1
    local._server.receive(0, b"garbage")
    assert len(accepted) == 4 * len(MEMBERS), "what is refused is not reported"


def test_a_client_reports_the_messages_that_it_is_about_to_handle() -> None:
    kinds: list[type[m.Message]] = []
    local = session(ServerHooks(), ClientHooks(on_message=kinds.append))
    local.open()
    local.ask("sum")
    assert kinds == [m.Invitation, m.KeyList, m.Delivery, m.Query, m.Survivors]


def test_a_message_that_its_hook_stops_was_not_seen() -> None:
    class Stopped(Exception):
        pass

    def stop(_kind: type[m.Message]) -> None:
        raise Stopped

    local = session(ServerHooks(), ClientHooks(on_message=stop))
    client = local._clients[0]
    with pytest.raises(Stopped):
        client.receive(local._server.invitation)
    assert client.state is ClientState.NEW


def test_transformed_residues_are_what_is_summed() -> None:
    def ten_more(_question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
        residues[0][:] += 10
        return residues

    local = session(ServerHooks(), ClientHooks(transform=ten_more))
    local.open()
    assert local.ask("sum")["x"].tolist() == [13, 13]

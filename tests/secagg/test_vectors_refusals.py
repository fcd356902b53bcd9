"""The negative vectors: each frame in refusals.json is refused with exactly its error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.vectors.describe import read_policy, read_registry, read_table, unchained
from scripts.vectors.play import NOW
from scripts.vectors.recorder import without_nonce
from secagg import errors
from secagg.client_budget import Budget
from secagg.client_memory import AnswerEntry, VolatileMemory
from secagg.errors import OutOfOrder, PeerError
from secagg.events import Asked, Excluded, ServerEvent
from secagg.keys import Identity
from secagg.server import ServerMachine
from secagg.testing import InsecureSeededClient, InsecureSeededServer
from secagg.transitions import ClientState
from tests.secagg.flat_params import with_params

PATH = Path(__file__).resolve().parent.parent / "vectors" / "refusals.json"
VECTORS: dict[str, Any] = json.loads(PATH.read_text(encoding="ascii"))
Case = dict[str, Any]


def name_of(case: Case) -> str:
    return str(case["name"])


# --- clients -----------------------------------------------------------------------------------------


def new_memory(before: Case) -> VolatileMemory:
    memory = VolatileMemory()
    for session in before.get("sessions", ()):
        memory.remember_session(bytes.fromhex(session))
    for row in before.get("answers", ()):
        content = bytes.fromhex(row["content"])
        charge = row.get("charge")  # without one, the sum had no noise
        entry = AnswerEntry(group=row["group"], round_number=row["round"], content=content, charge=charge)
        memory.remember_answer(entry, Budget())
    if before.get("live"):
        memory.open_session()
    return memory


def started(name: str) -> InsecureSeededClient:
    """The client of a start, after all its steps."""
    start = VECTORS["starts"][name]
    settings = VECTORS["clients"][start["client"]]
    identity = settings["identity"]
    client = InsecureSeededClient(
        seed=bytes.fromhex(settings["seed"]),
        member=settings["member"],
        table=read_table(settings["table"]),
        policy=read_policy(settings["policy"]),
        memory=new_memory(start["memory"]),
        identity=Identity.from_secret(bytes.fromhex(identity)) if identity else None,
        registry=read_registry(settings["registry"]),
        static=settings.get("static", ()),
        content_of=without_nonce(settings.get("nonce_bytes", 0)),
    )
    asked = -1
    for step in unchained(VECTORS["starts"], name):
        if "answer" in step:
            client.answer(asked, {"x": np.array(step["answer"], np.uint64)})
            continue
        for event in client.receive(bytes.fromhex(step["frame"]), now=NOW).events:
            asked = event.sum_index if isinstance(event, Asked) else asked
    return client


@pytest.mark.parametrize("case", VECTORS["cases"], ids=name_of)
def test_client_refuses(case: Case) -> None:
    client = started(case["start"])

    with pytest.raises(PeerError) as caught:
        client.receive(bytes.fromhex(case["frame"]), now=NOW)

    assert type(caught.value).__name__ == case["error"]
    assert client.state is ClientState.FAILED
    with pytest.raises(OutOfOrder):
        client.receive(bytes.fromhex(VECTORS["starts"]["advertised"]["steps"][0]["frame"]), now=NOW)


GROUPS = ("cases", "server_cases", "ring_server_cases", "noise_server_cases", "hybrid_server_cases")


def test_names_are_different() -> None:
    for group in GROUPS:
        names = [name_of(case) for case in VECTORS[group]]
        assert len(set(names)) == len(names)


# --- the server --------------------------------------------------------------------------------------


def new_server(name: str) -> InsecureSeededServer:
    settings = dict(VECTORS[name])
    return InsecureSeededServer(
        seed=bytes.fromhex(settings.pop("seed")),
        table=read_table(settings.pop("table")),
        registry=read_registry(settings.pop("registry")),
        now=NOW,
        **with_params(settings),
    )


def take(server: ServerMachine, step: Case) -> tuple[ServerEvent, ...]:
    if "frame" in step:
        return server.receive(step["from"], bytes.fromhex(step["frame"]))
    if "ask" in step:
        return server.ask(step["ask"], bytes.fromhex(step["payload"]), round_number=step["round"]).events
    return server.close_stage().events


def exclusions(events: tuple[ServerEvent, ...]) -> list[tuple[int, str]]:
    return [(e.peer, type(e.error).__name__) for e in events if isinstance(e, Excluded)]


def assert_turns_away(name: str, case: Case) -> None:
    server = new_server(name)
    for step in unchained(VECTORS[f"{name}_starts"], case["start"]):
        assert exclusions(take(server, step)) == []

    peers = [case["peer"], case["other"]] if "other" in case else [case["peer"]]
    assert exclusions(take(server, case["step"])) == [(peer, case["error"]) for peer in peers]
    for peer in peers:
        assert server.receive(peer, b"") == ()  # whoever was turned away is not heard any more


@pytest.mark.parametrize("case", VECTORS["server_cases"], ids=name_of)
def test_server_turns_away(case: Case) -> None:
    assert_turns_away("server", case)


@pytest.mark.parametrize("case", VECTORS["ring_server_cases"], ids=name_of)
def test_server_on_a_ring_turns_away(case: Case) -> None:
    assert_turns_away("ring_server", case)


@pytest.mark.parametrize("case", VECTORS["noise_server_cases"], ids=name_of)
def test_server_with_noise_turns_away(case: Case) -> None:
    assert_turns_away("noise_server", case)


@pytest.mark.parametrize("case", VECTORS["hybrid_server_cases"], ids=name_of)
def test_server_of_hybrid_sessions_turns_away(case: Case) -> None:
    assert_turns_away("hybrid_server", case)


# --- completeness ------------------------------------------------------------------------------------

# No frame leads to `SecretReused`: moves and sum indices are checked first. It stands behind them, in the
# vault. `SlowReader` and `WrongHandOver` belong to the transport and to ledgers, which no machine knows of.
UNREACHABLE = {"SecretReused", "SlowReader", "WrongHandOver"}
ROOTS = {"PeerError", "PolicyError", "Lie"}


def test_every_error_of_a_peer_has_a_vector() -> None:
    classes = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, PeerError) and name not in ROOTS
    }

    assert {case["error"] for group in GROUPS for case in VECTORS[group]} == classes - UNREACHABLE

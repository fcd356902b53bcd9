"""The committed vectors are those that the script makes, and the verifier misses no byte of a transcript."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from scripts import make_vectors
from scripts.vectors import recording_client, transcripts
from scripts.vectors.play import NOW
from scripts.vectors.plays import PLAYS
from scripts.vectors.recording_client import RecordingClient, arrays
from secagg import messages as m
from secagg.events import Asked, SumReleased
from secagg.hybrid_keys import Encapsulation
from secagg.transitions import ServerState
from tests import verifier

FOLDER = Path(__file__).resolve().parent.parent / "vectors"
NAMES = tuple(sorted(path.name for path in FOLDER.glob("*.json")))
# README.md names their sources.
FROM_ELSEWHERE = {"make-classification.json", "noise-parameters.json", "ring-parameters.json"}


@cache
def transcript(name: str) -> dict[str, Any]:
    text = (FOLDER / f"transcript-{name}.json").read_text(encoding="ascii")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


# --- the files ---------------------------------------------------------------------------------------


@cache
def made() -> dict[str, str]:
    return make_vectors.all_vectors()


def test_every_file_is_made_by_the_script() -> None:
    assert {*made(), *FROM_ELSEWHERE} == set(NAMES)


@pytest.mark.parametrize("name", sorted(set(NAMES) - FROM_ELSEWHERE))
def test_file_is_what_the_script_makes(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="ascii") == made()[name]


def test_every_message_is_in_a_transcript() -> None:
    seen = {row["type"] for name in PLAYS for row in transcript(name)["frames"]}

    assert seen == {kind.__name__ for kind in (*m.FROM_SERVER, *m.FROM_CLIENT)}


def test_vectors_are_made_again_with_the_same_encapsulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are random in the library: what is not in the file would come out different."""

    def no_more(_: bytes) -> Encapsulation:
        raise AssertionError("an encapsulation that is not in the file")

    monkeypatch.setattr(recording_client, "encapsulate", no_more)
    for name in ("hybrid-curious", "hybrid-malicious"):
        transcripts.transcript(PLAYS[name], transcript(name)["clients"])
    with pytest.raises(AssertionError, match="not in the file"):
        transcripts.transcript(PLAYS["hybrid-malicious"], {})


# --- the verifier ------------------------------------------------------------------------------------


def imported(path: Path) -> set[str]:
    """The full names of all that a module imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return names | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


def test_verifier_shares_no_code() -> None:
    """It is made of the modules next to it, the standard library and `cryptography`."""
    parts = sorted(Path(str(verifier.__file__)).parent.glob("verifier*.py"))
    names = set().union(*map(imported, parts))
    others = {name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, "cryptography"}}
    modules = {f"tests.{path.stem}" for path in parts}

    assert len(modules) == 7
    assert all(name in modules or name.rpartition(".")[0] in modules for name in others)
    assert {name for name in names if name.startswith("secagg")} == set()


LONG_PLAYS = {"noise", "liars", "ring", "ring-named", "hybrid-curious"}
THE_LONGEST_LATER = [
    pytest.param(name, marks=pytest.mark.slow) if name in LONG_PLAYS else name for name in PLAYS
]


@pytest.mark.parametrize("name", PLAYS)
def test_verifier_accepts(name: str) -> None:
    verifier.verify(transcript(name))


def with_frame(data: dict[str, Any], index: int, frame: bytes) -> dict[str, Any]:
    frames = list(data["frames"])
    frames[index] = {**frames[index], "frame": frame.hex()}
    return {**data, "frames": frames}


def frames_of(data: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(row["frame"]) for row in data["frames"]]


def assert_rejected(data: dict[str, Any], what: str) -> None:
    try:
        verifier.verify(data)
    except verifier.Rejected:
        return
    pytest.fail(f"accepted with {what}")


def flip(frame: bytes, position: int, change: int) -> bytes:
    return frame[:position] + bytes([frame[position] ^ change]) + frame[position + 1 :]


def some_positions(size: int) -> list[int]:
    """Both ends, the middle, and one more; in every frame another one."""
    return sorted({0, 1, 2, size // 2, size * 5 // 7, size - 1})


@pytest.mark.parametrize("name", THE_LONGEST_LATER)
def test_verifier_rejects_changed_bytes(name: str) -> None:
    data, tried = transcript(name), 0
    for index, frame in enumerate(frames_of(data)):
        for position in some_positions(len(frame)):
            change = (0x01, 0x80, 0xFF, 0x10)[(index + position) % 4]
            what = f"byte {position} of frame {index} changed by {change:#x}"
            assert_rejected(with_frame(data, index, flip(frame, position, change)), what)
            tried += 1

    assert tried >= 5 * len(data["frames"])


# Transcripts with long frames that are much alike: of these, one byte in so many is changed.
STRIDES = {"liars": 8, "hybrid-curious": 4, "hybrid-malicious": 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYS)
def test_verifier_rejects_every_changed_byte(name: str) -> None:
    data, stride = transcript(name), STRIDES.get(name, 1)
    for index, frame in enumerate(frames_of(data)):
        for position in range(index % stride, len(frame), stride):
            changed = flip(frame, position, 1 << (position + index) % 8)
            assert_rejected(with_frame(data, index, changed), f"byte {position} of frame {index} changed")


@pytest.mark.parametrize("name", THE_LONGEST_LATER)
def test_verifier_rejects_other_lengths(name: str) -> None:
    data = transcript(name)
    for index, frame in enumerate(frames_of(data)):
        for other in (b"", frame[:-1], frame + b"\x00"):
            assert_rejected(with_frame(data, index, other), f"frame {index} of {len(other)} bytes")


@pytest.mark.parametrize("name", THE_LONGEST_LATER)
def test_verifier_rejects_other_sequences(name: str) -> None:
    data = transcript(name)
    frames = data["frames"]
    for index, frame in enumerate(frames):
        shorter = [*frames[:index], *frames[index + 1 :]]
        assert_rejected({**data, "frames": shorter}, f"frame {index} missing")
        assert_rejected({**data, "frames": [*frames[:index], frame, *frames[index:]]}, f"frame {index} twice")
        if index:
            swapped = [*frames[: index - 1], frame, frames[index - 1], *frames[index + 1 :]]
            assert_rejected({**data, "frames": swapped}, f"frame {index} early")


# Not of the session itself: how it was made, and what a client had before rounding.
UNCHECKED = {"about", "seed", "dropout", "policy", "values", "type"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings and numbers that the verifier must have looked at."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in UNCHECKED or "total" in path:
                yield from leaves(item, (*path, key))
    elif value not in (None, ""):
        yield path


def with_leaf_changed(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return another(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_leaf_changed(copy[path[0]], path[1:])
    return copy


def another(leaf: Any) -> Any:
    """A slightly different leaf. X25519 ignores some bits at both ends of a secret. An honest session does
    not depend on the second half of a KEM seed, which is for ciphertexts that do not belong to the key."""
    if isinstance(leaf, bool):
        return not leaf
    if not isinstance(leaf, str):
        return leaf * 1.0000001 if isinstance(leaf, float) and leaf else leaf + 1
    at = len(leaf) // 4
    return leaf[:at] + ("1" if leaf[at] != "1" else "2") + leaf[at + 1 :]


def assert_leaf_matters(data: dict[str, Any], path: tuple[Any, ...]) -> None:
    try:
        verifier.verify(with_leaf_changed(data, path))
    except (verifier.Rejected, LookupError, ValueError):  # strangers and other hex digits do not even parse
        return
    pytest.fail(f"accepted with another {path}")


def checked_leaves(name: str) -> Iterator[tuple[Any, ...]]:
    """All of them but the frames, which have tests of their own; an unsigned session has no registry."""
    signed = bool(transcript(name)["registry"]["members"])
    for path in leaves(transcript(name)):
        if path[-1] != "frame" and (path[0] != "registry" or signed):
            yield path


@pytest.mark.parametrize("name", PLAYS)
def test_verifier_rejects_other_totals(name: str) -> None:
    data = transcript(name)
    totals = [path for path in checked_leaves(name) if path[0] == "sums" and "total" in path]
    released = [data["table"][row["kind"]]["parts"] for row in data["sums"] if row["total"]]

    # Two counts, and every element as a residue, where it may be padded, and as a number.
    elements = [part.get("width", part["size"]) + part["size"] for parts in released for part in parts]
    assert len(totals) == 2 * len(released) + sum(elements) > 0
    for path in totals:
        with pytest.raises(verifier.Rejected):
            verifier.verify(with_leaf_changed(transcript(name), path))


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("curious_server", {"corrupt": 3}),
        ("malicious_server", {"corrupt": 2}),
        ("noise", {"corrupt": 2}),
        ("ring", {"corrupt": 3}),  # three hold a threshold of shares
        ("ring", {"corrupt": 1}),  # one more may be missing: the last sum had enough
        ("ring-named", {"min_difference": 3}),  # two sums differ by two clients
        ("ring-named", {"corrupt": 1}),  # too few honest clients would know of a total
        ("hybrid-curious", {"min_contributors": 5}),
        ("hybrid-malicious", {"corrupt": 2}),
        ("liars", {"corrupt": 5}),
    ],
)
def test_verifier_rejects_other_policies(name: str, policy: dict[str, int]) -> None:
    data = transcript(name)
    with pytest.raises(verifier.Rejected):
        verifier.verify({**data, "policy": {**data["policy"], **policy}})


@pytest.mark.parametrize("name", THE_LONGEST_LATER)
def test_verifier_looks_at_the_description(name: str) -> None:
    for path in islice(checked_leaves(name), 0, None, 5):
        assert_leaf_matters(transcript(name), path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYS)
def test_verifier_looks_at_all_of_the_description(name: str) -> None:
    for path in checked_leaves(name):
        assert_leaf_matters(transcript(name), path)


# --- the machines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAYS)
def test_clients_send_the_same_frames(name: str) -> None:
    """Each client, fed the server's frames of the file, answers with its own frames of the file."""
    data = transcript(name)
    clients = {k: transcripts.new_client(PLAYS[name], k, data["clients"]) for k in data["members"]}
    sent: list[tuple[int, str]] = []
    for row in data["frames"]:
        if row["from"] != "server":
            continue
        for member in row["to"]:
            frames = replies(data, clients[member], bytes.fromhex(row["frame"]))
            sent += [(member, frame.hex()) for frame in frames]
    sent += [(member, clients[member].leave().hex()) for member in data["leavers"]]
    listed = [(row["from"], row["frame"]) for row in data["frames"] if row["from"] != "server"]

    for member in clients:
        assert [row for row in sent if row[0] == member] == [row for row in listed if row[0] == member]


def replies(data: dict[str, Any], client: RecordingClient, frame: bytes) -> tuple[bytes, ...]:
    """What a client sends after `frame`, with the values that the file gives it."""
    step = client.receive(frame, now=NOW)
    for event in step.events:
        if isinstance(event, Asked):
            row = data["sums"][event.sum_index]
            given = row["inputs"].get(str(client.member))
            if given is not None:
                return (client.answer(event.sum_index, arrays(given["values"])).frame,)
            return (client.decline(event.sum_index),) if client.member in row["declined"] else ()
    return step.frames


# When these stages end well, no frame goes out: all deposits are in, or all shares, and the total comes out.
WITHOUT_FRAMES = (ServerState.DEPOSITING, ServerState.UNMASKING)


@pytest.mark.parametrize("name", PLAYS)
def test_server_sends_the_same_frames(name: str) -> None:
    """A server, fed the clients' frames of the file, sends its frames and releases its totals."""
    data, server = transcript(name), transcripts.new_server(PLAYS[name])
    expected: list[str] = [server.invitation.hex()]
    released: list[SumReleased] = []

    def advance(kind: str) -> None:
        """Do what makes the server send a frame of this type."""
        if kind == "Farewell":
            outgoing = server.end().outgoing
        elif kind == "Query":
            row = data["sums"][len(data["sums"]) - server.sums_left]
            payload = bytes.fromhex(row["payload"])
            outgoing = server.ask(row["kind"], payload, round_number=row["round"]).outgoing
        else:
            step = server.close_stage()
            released.extend(event for event in step.events if isinstance(event, SumReleased))
            outgoing = step.outgoing
        expected.extend(packet.frame.hex() for packet in outgoing)

    for row in data["frames"]:
        if row["from"] != "server":
            server.receive(row["from"], bytes.fromhex(row["frame"]))
            continue
        if not expected and server.state in WITHOUT_FRAMES:
            advance("nothing")
        if not expected:
            advance(row["type"])
        assert expected.pop(0) == row["frame"]
    totals = [row["total"] for row in data["sums"] if row["total"]]

    assert expected == []
    assert [total["values"] for total in totals] == [listed(event) for event in released]


def listed(event: SumReleased) -> dict[str, Any]:
    return {name: values.tolist() for name, values in event.total.parts.items()}

"""Every transcript, rebuilt byte for byte by the implementation that knows only docs/protocol.md."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.second_implementation.crypto import HYBRID
from tests.second_implementation.encoding import MESSAGES
from tests.second_implementation.play import IDS, Play, WrongDeposit, WrongMask
from tests.second_implementation.replay import Replay

VECTORS = Path(__file__).parent / "vectors"
TRANSCRIPTS = sorted(VECTORS.glob("transcript-*.json"))


def read(path: Path) -> dict[str, Any]:
    """The content of a transcript."""
    listed: dict[str, Any] = json.loads(path.read_text())
    return listed


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_rebuilt(path: Path) -> None:
    """All frames, totals, convictions and evidence follow from the listed secrets and inputs."""
    listed = read(path)
    replay = Replay(listed)
    replay.run()
    assert replay.counts.total() == len(listed["frames"])


def test_all_messages_are_rebuilt() -> None:
    """Between them, the transcripts contain every type of message."""
    found = {frame["type"] for path in TRANSCRIPTS for frame in read(path)["frames"]}
    assert found == set(MESSAGES)


@pytest.mark.parametrize("name", ["transcript-curious_server", "transcript-hybrid-malicious"])
def test_changed_byte_is_noticed(name: str) -> None:
    """The replay fails if the last byte of the first frame of any type is changed."""
    listed = read(VECTORS / f"{name}.json")
    firsts = {frame["type"]: index for index, frame in reversed(list(enumerate(listed["frames"])))}
    for index in firsts.values():
        changed = copy.deepcopy(listed)
        data = bytearray.fromhex(changed["frames"][index]["frame"])
        data[-1] ^= 1
        changed["frames"][index]["frame"] = data.hex()
        with pytest.raises((AssertionError, ValueError)):
            Replay(changed).run()


class TestOtherLies:
    """Lies that no transcript contains: the server convicts, and its evidence convinces others."""

    @pytest.mark.parametrize("agreement", ["x25519", HYBRID])
    def test_false_word(self, agreement: str) -> None:
        """A client used another mask with a client that dropped out."""
        play = Play(agreement, IDS[1], WrongMask, cheated=[IDS[4]])
        play.run(absent=[IDS[4]])
        convicted(play, IDS[1], "false word", "CorruptTotal")

    @pytest.mark.parametrize("agreement", ["x25519", HYBRID])
    def test_many_disputes(self, agreement: str) -> None:
        """A client used other masks with more contributors than may lie."""
        play = Play(agreement, IDS[1], WrongMask, cheated=[IDS[0], IDS[2]])
        play.run(absent=[])
        convicted(play, IDS[1], "many disputes", "Disputed")

    def test_false_deposit(self) -> None:
        """A client dropped out, and its deposits do not open."""
        play = Play(HYBRID, IDS[4], WrongDeposit)
        play.run(absent=[IDS[4]])
        convicted(play, IDS[4], "false deposit", "Unrecoverable")


def convicted(play: Play, client: int, offence: str, error: str) -> None:
    """The sum failed, and evidence proves the client's offence, but not that of another client."""
    assert play.server.totals == [error]
    _, conviction, evidence = play.server.convictions[0]
    assert (conviction.client, conviction.offence) == (client, offence)
    assert evidence is not None
    assert play.court.proves(evidence)
    assert not play.court.proves(dataclasses.replace(evidence, accused=IDS[2]))

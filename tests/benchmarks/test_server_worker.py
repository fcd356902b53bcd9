"""The process of the server in ``python -m benchmarks sum``: what it holds, what it says, and how it ends."""

import io
import json
import mmap
import os
import resource
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import memory_growth
from benchmarks.memory_growth import MemoryGrowth
from benchmarks.pipe_messages import Channel, Kind, Note
from benchmarks.remote_server import BenchmarkFailed, server_process
from benchmarks.sum_setting import SumSetting
from secagg import Trust
from secagg.errors import ParameterError
from sims import process_resources

pytestmark = pytest.mark.slow  # measures real sums

needs_proc = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of this process cannot be reset"
)


def setting(**changes: Any) -> SumSetting:
    usual: dict[str, Any] = {
        "clients": 10,
        "dim": 9,
        "bits": 32,
        "corrupt": 1,
        "dropout": Fraction(1, 5),
        "trust": Trust.CURIOUS,
    }
    return SumSetting(**(usual | changes))


@needs_proc
def test_growth_sees_what_was_freed_again() -> None:
    """Pages of its own: what the allocator still holds from before would not be growth."""
    growth = MemoryGrowth()

    with mmap.mmap(-1, 40_000_000) as pages:
        pages[::1000] = bytes(40_000)

    assert growth.peak_bytes() > 39_000_000


@needs_proc
def test_growth_starts_afresh() -> None:
    np.ones(20_000_000)

    assert MemoryGrowth().peak_bytes() < 80_000_000


def test_growth_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the peak is the system's, and what is resident at the start is not known any better."""
    peaks = iter([SimpleNamespace(ru_maxrss=100), SimpleNamespace(ru_maxrss=140)])
    monkeypatch.setattr(process_resources, "_STATUS", Path("/no/such/file"))
    monkeypatch.setattr(memory_growth, "_CLEAR", Path("/no/such/file"))
    monkeypatch.setattr(resource, "getrusage", lambda _: next(peaks))
    monkeypatch.setattr(sys, "platform", "linux")

    assert MemoryGrowth().peak_bytes() == 40 * 1024


def test_messages_survive_the_channel() -> None:
    stream = io.BytesIO()
    sender = Channel(io.BytesIO(), stream)

    sender.send(Kind.FRAME, b"frame", number=7)
    sender.send(Kind.TOTAL, np.arange(3.0).data)
    sender.send_json(Kind.STATUS, {"error": None})

    receiver = Channel(io.BytesIO(stream.getvalue()), io.BytesIO())
    assert receiver.receive() == Note(Kind.FRAME, 7, b"frame")
    assert receiver.receive() == Note(Kind.TOTAL, 0, np.arange(3.0).tobytes())
    assert receiver.receive().json() == {"error": None}
    with pytest.raises(EOFError):
        receiver.receive()


def test_half_a_message_is_the_end() -> None:
    stream = io.BytesIO()
    Channel(io.BytesIO(), stream).send(Kind.FRAME, b"frame")

    with pytest.raises(EOFError):
        Channel(io.BytesIO(stream.getvalue()[:-1]), io.BytesIO()).receive()


def test_server_process_that_ends_early(capfd: pytest.CaptureFixture[str]) -> None:
    """A frame before there is a machine is more than it can bear."""
    with server_process() as server:
        server.receive(0, b"frame")
        with pytest.raises(BenchmarkFailed, match="ended before its time"):
            server.close_stage()

    assert "AttributeError" in capfd.readouterr().err


def interrupted_session() -> None:
    with server_process() as server:
        server.begin(setting(processes=2), None)
        raise KeyError


def test_server_process_ends_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def remembered(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remembered)
    with server_process():
        pass
    with pytest.raises(KeyError):
        interrupted_session()

    assert [process.returncode for process in started] == [0, 1]


def test_setting_survives_json() -> None:
    for chosen in (setting(neighbours=4), setting(trust=Trust.MALICIOUS, processes=2)):
        assert SumSetting.from_json(json.loads(json.dumps(chosen.as_json()))) == chosen


def test_server_refuses_its_terms() -> None:
    with server_process() as server, pytest.raises(ParameterError, match="part 'update' has 3 bits"):
        server.begin(setting(bits=3), None)

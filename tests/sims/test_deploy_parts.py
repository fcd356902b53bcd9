"""The parts of a deployment one by one: log, totals, questions, inputs, and what ends it from outside."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import InputError, LedgerError
from secagg.events import Asked
from secagg.identity_registry import Registry
from secagg.ledger import ServerLedger
from secagg.net.event_log import EventLog, Fact
from secagg.sum_spec import Count, LInf, Part, SumSpec, Table, Total
from sims.config_problems import ConfigError
from sims.deploy.client_values import Source, answer_of, open_source
from sims.deploy.config import AskSection, InputSection
from sims.deploy.log import LogWriter, event_log_of, open_log
from sims.deploy.process_control import allow_connections, run_watched
from sims.deploy.repeatable_query_nonce import NONCE_BYTES, fresh, without_nonce
from sims.deploy.sum_schedule import ScheduledSum, SumSchedule, round_after
from sims.deploy.totals_directory import TotalsDirectory
from sims.process_resources import forbid_core_dumps

# --- the log ---


def noon() -> datetime:
    return datetime(2030, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)


def test_a_log_is_json_for_machines() -> None:
    stream = StringIO()

    LogWriter(stream, plain=False, clock=noon)("connected", {"member": 3, "reason": "a\nb"})

    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {
        "time": "2030-01-02T12:00:00.123Z",
        "event": "connected",
        "member": 3,
        "reason": "a\nb",
    }


class Yielding(StringIO):
    """Lets other threads run after every write."""

    def write(self, text: str) -> int:
        written = super().write(text)
        time.sleep(0.001)
        return written


def test_lines_of_several_threads_do_not_mix() -> None:
    """A server that trains writes its log in two threads."""
    stream = Yielding()
    log = LogWriter(stream, plain=False)
    with ThreadPoolExecutor(4) as pool:
        for number in range(40):
            pool.submit(log, "released", {"sum": number})
    lines = stream.getvalue().splitlines()
    assert sorted(json.loads(line)["sum"] for line in lines) == list(range(40))


def test_a_log_is_words_on_a_terminal() -> None:
    stream = StringIO()
    log = LogWriter(stream, plain=True, clock=noon)

    log("connected", {"member": 3, "reason": "\x1b[2J"})
    log("stopped", {})

    first, second = stream.getvalue().splitlines()
    assert first.endswith('  connected       member 3  reason "\\u001b[2J"')
    assert second.endswith("  stopped")


def test_a_log_in_a_file_is_appended_to(tmp_path: Path) -> None:
    for event in ("one", "two"):
        with open_log(tmp_path / "log") as log:
            log(event, {})

    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["one", "two"]
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


def test_a_log_that_is_full_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")

    with open_log(Path("/dev/full")) as log:
        log("one", {})
        log("two", {})

    assert capsys.readouterr().err == (
        "secagg: the log cannot be written any more: No space left on device\n"
    )


@pytest.mark.parametrize("reader", [False, True])
def test_a_pipe_is_no_log(tmp_path: Path, reader: bool) -> None:
    """To open it would wait for a reader, and to write to it could wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    handle = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK) if reader else None

    with (
        pytest.raises(ConfigError, match="pipe cannot be written: it is a special file"),
        open_log(tmp_path / "pipe"),
    ):
        pass

    if handle is not None:
        os.close(handle)


def test_without_a_standard_output_there_is_no_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a process that was started with `>&-`."""
    monkeypatch.setattr("sys.stdout", None)
    with open_log(None) as log:
        log("started", {})
    assert capsys.readouterr().err.startswith("secagg: there is no log: standard output is closed")


@dataclass(frozen=True)
class Section:
    """A table of a configuration, which names a log or does not."""

    log: Path | None
    model_fields_set: set[str]


def test_a_program_logs_with_python_unless_its_section_names_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for event, section in {
        "one": Section(None, set()),
        "two": Section(tmp_path / "log", {"log"}),
        "three": Section(None, {"log"}),
    }.items():
        with event_log_of(section) as log:
            log.write(event)
    assert [each.getMessage() for each in caplog.records] == ["one"]
    assert '"two"' in (tmp_path / "log").read_text()
    assert '"three"' in capsys.readouterr().out


# --- totals ---

TOTAL = Total({"file": np.array([1.5, 2.5]), "count": np.array([7], np.uint64)}, count=3, invited=4)
QUESTION = ScheduledSum("mean", 12, 3, None)


def test_a_total_is_stored_under_its_round(tmp_path: Path) -> None:
    """Whatever its parts are called."""
    path = TotalsDirectory(tmp_path).store(TOTAL, QUESTION)

    assert path == tmp_path / "00000012-03-mean.npz"
    assert path.stat().st_mode & 0o077 == 0
    with np.load(path, allow_pickle=False) as archive:
        assert {name: archive[name].tolist() for name in archive} == {
            "file": [1.5, 2.5],
            "count": [7],
            "_kind": "mean",
            "_round": 12,
            "_clients": 3,
            "_invited": 4,
        }


def test_a_total_is_never_overwritten(tmp_path: Path) -> None:
    before = TotalsDirectory(tmp_path).store(TOTAL, QUESTION).read_bytes()

    with pytest.raises(ConfigError, match="exists already, and is never overwritten"):
        TotalsDirectory(tmp_path).store(Total({"file": np.zeros(2)}, count=1, invited=1), QUESTION)

    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == before


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    TotalsDirectory(tmp_path / "new").prepare()
    TotalsDirectory(tmp_path / "new").check_writable()

    assert list((tmp_path / "new").iterdir()) == []


def test_rounds_go_on_behind_the_totals(tmp_path: Path) -> None:
    """Other files are none of them, whatever they are called."""
    assert TotalsDirectory(tmp_path).round_after() == 0
    for name in ("notes", "123-00-mean.npz", "99999999-00-mean.txt", ".00000099-00-mean.npz.0123"):
        (tmp_path / name).write_text("")
    assert TotalsDirectory(tmp_path).round_after() == 0
    TotalsDirectory(tmp_path).store(TOTAL, QUESTION)
    assert TotalsDirectory(tmp_path).round_after() == 13
    (tmp_path / "123456789-00-mean.npz").write_text("")
    assert TotalsDirectory(tmp_path).round_after() == 123456790


def test_a_total_that_could_not_be_stored_is_noticed_in_time(tmp_path: Path) -> None:
    TotalsDirectory(tmp_path).check_free(QUESTION)
    TotalsDirectory(tmp_path).store(TOTAL, QUESTION)

    with pytest.raises(ConfigError, match=r"00000012-03-mean\.npz is there already; move it away"):
        TotalsDirectory(tmp_path).check_free(QUESTION)


def test_totals_of_one_server_at_a_time(tmp_path: Path) -> None:
    in_use = pytest.raises(ConfigError, match="is in use by another server")
    with TotalsDirectory(tmp_path).held(), in_use, TotalsDirectory(tmp_path).held():
        pass
    with TotalsDirectory(tmp_path).held():
        pass


def test_totals_that_nobody_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_handle: int, _operation: int) -> None:
        raise OSError(95, "Operation not supported")

    with (
        pytest.raises(ConfigError, match="none cannot be used: No such file"),
        TotalsDirectory(tmp_path / "none").held(),
    ):
        pass
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        TotalsDirectory(tmp_path / "none").round_after()
    monkeypatch.setattr("fcntl.flock", unsupported)
    with (
        pytest.raises(ConfigError, match="cannot be locked: Operation not supported"),
        TotalsDirectory(tmp_path).held(),
    ):
        pass


# --- limits ---


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """Those of this process stay as they are."""
    found = {resource.RLIMIT_CORE: (100, 200), resource.RLIMIT_NOFILE: (100, 200)}
    monkeypatch.setattr(resource, "getrlimit", found.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", found.__setitem__)
    return found


def test_no_core_is_dumped(limits: dict[int, tuple[int, int]]) -> None:
    forbid_core_dumps()

    assert limits[resource.RLIMIT_CORE] == (0, 200)


def test_connections_need_open_files(limits: dict[int, tuple[int, int]]) -> None:
    allow_connections(100)
    assert limits[resource.RLIMIT_NOFILE] == (164, 200)
    with pytest.raises(ConfigError, match="this takes about 214 open files, and the system allows 200"):
        allow_connections(150)


# --- questions ---


def test_every_payload_is_new() -> None:
    asked = {fresh(b"model") for _ in range(100)}

    assert len(asked) == 100
    assert {without_nonce(payload) for payload in asked} == {b"model"}
    assert {len(payload) for payload in asked} == {NONCE_BYTES + 5}


def test_a_question_without_a_nonce_is_noticed() -> None:
    assert without_nonce(bytes(NONCE_BYTES)) == b""
    with pytest.raises(ConfigError, match="does not begin with a nonce of 16 bytes"):
        without_nonce(bytes(NONCE_BYTES - 1))


def test_a_payload_is_read_for_each_question(tmp_path: Path) -> None:
    question = ScheduledSum("mean", 0, 0, tmp_path / "model")
    for contents in (b"first", b"second"):
        (tmp_path / "model").write_bytes(contents)
        assert without_nonce(question.payload()) == contents
    (tmp_path / "model").unlink()
    with pytest.raises(ConfigError, match="does not exist; write it"):
        question.payload()


def test_every_pass_through_the_questions_is_a_round() -> None:
    asks = [AskSection(kind="a"), AskSection(kind="b")]
    questions = SumSchedule(asks, sums=5, next_round=7)

    first, second = list(questions.of_session()), list(questions.of_session())

    assert [(each.kind, each.round_number) for each in first] == [
        ("a", 7), ("b", 7), ("a", 8), ("b", 8), ("a", 9),
    ]  # fmt: skip
    assert [each.sum_index for each in first] == [0, 1, 2, 3, 4]
    assert second[0].round_number == 10


def test_rounds_go_on_behind_those_of_the_ledger(tmp_path: Path) -> None:
    from secagg import messages as m

    table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(1.0)),))})
    path = tmp_path / "ledger"
    with ServerLedger.create(path) as ledger:
        assert round_after(path) == 0
        for number in (3, 9, 4):
            ledger.note_asked(m.Query(bytes(32), 0, number, "mean", b"\x07", b"").encode(), table)
        assert round_after(path) == 10


# --- inputs ---

SPEC = SumSpec(
    parts=(
        Part(name="x", size=2, bits=32, bound=LInf(1.0)),
        Part(name="n", size=1, bits=32, bound=Count(9)),
    )
)


def asked(payload: bytes = b"") -> Asked:
    return Asked(sum_index=0, round=0, kind="mean", payload=fresh(payload), spec=SPEC, invited=3)


def test_values_from_a_file_are_read_for_each_question(tmp_path: Path) -> None:
    path = tmp_path / "values.npz"
    source = open_source(InputSection(values=path), tmp_path)
    for number in (1, 2):
        np.savez(path, x=[0.5, 0.25], n=[number], other=[3])
        values = answer_of(source, asked())
        assert {name: array.tolist() for name, array in values.items()} == {"x": [0.5, 0.25], "n": [number]}


def broken_archive(path: Path) -> None:
    np.savez(path, x=[0.5, 0.25], n=[1])
    path.write_bytes(path.read_bytes()[:200])


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(2))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.write_bytes(b"nonsense"), r"\(ValueError\)"),
        (lambda path: path.write_bytes(b""), r"\(EOFError\)"),
        (broken_archive, r"\(BadZipFile\)"),
        (os.mkfifo, "values.npz is a directory or a special file"),
        (one_array, "does not hold arrays as numpy.savez writes them"),
        (lambda path: np.savez(path, x=[0.5, 0.25]), "there is no array 'n'"),
        (lambda path: np.savez(path, x=[0.5], n=[1]), r"part 'x' needs shape \(2,\), not \(1,\)"),
        (lambda path: np.savez(path, x=[0.5, np.nan], n=[1]), "part 'x' holds NaN or infinity"),
        (lambda path: np.savez(path, x=[0.5, 0.5], n=[10]), "part 'n' needs integers from 0 to 9"),
        (lambda path: np.savez(path, x=np.array([{}, {}]), n=[1]), r"\(ValueError\)"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_no_more(tmp_path: Path, write: Any, reason: str) -> None:
    path = tmp_path / "values.npz"
    write(path)

    with pytest.raises(InputError, match=reason):
        answer_of(open_source(InputSection(values=path), tmp_path), asked())


def raising(_asked: Asked) -> Mapping[str, Any]:
    raise RuntimeError("secret 271828")


def interrupting(_asked: Asked) -> Mapping[str, Any]:
    raise KeyboardInterrupt


class Hostile:
    """Something that numpy cannot make an array of."""

    def __array__(self, *_arguments: object, **_options: object) -> None:
        raise OverflowError("secret 271828")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (raising, "RuntimeError was raised"),
        (lambda _asked: sys.exit(0), "SystemExit was raised"),
        (interrupting, "KeyboardInterrupt was raised"),
        (lambda _asked: [1.0], "the values are not a mapping but list"),
        (lambda _asked: {"x": Hostile(), "n": [1]}, "OverflowError was raised"),
    ],
)
def test_a_function_that_fails_says_only_how(source: Source, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        answer_of(source, asked())

    assert str(caught.value) == reason
    assert caught.value.__suppress_context__


def test_a_function_gets_what_was_broadcast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "deploy_answers.py").write_text(
        "def answer(asked):\n    return {'x': [len(asked.payload) / 10, 0], 'n': [asked.invited]}\n"
    )
    source = open_source(InputSection(answer="deploy_answers:answer"), tmp_path)

    values = answer_of(source, asked(b"model"))

    assert (values["x"].tolist(), values["n"].tolist()) == ([0.5, 0.0], [3])


def test_with_noise_on_all_parts_values_are_not_checked_here() -> None:
    """`secagg.usable_values` makes them fit; a check here would make the client decline."""
    noise = Noise(scale=1, variance=Fraction(100))
    part = Part(name="n", size=1, bits=20, bound=Count(9), noise=noise)
    spec = SumSpec(parts=(part,), promise=NoiseAssumptions(clients=3, dropouts=0, colluders=0))
    question = replace(asked(b"model"), spec=spec)

    assert answer_of(lambda each: {"n": [each.payload]}, question) == {"n": [b"model"]}
    with pytest.raises(RuntimeError):
        answer_of(raising, question)


def test_a_question_of_another_kind_of_server_is_declined() -> None:
    short = Asked(sum_index=0, round=0, kind="mean", payload=b"short", spec=SPEC, invited=3)

    with pytest.raises(InputError, match="does not begin with a nonce"):
        answer_of(lambda _asked: {"x": [0, 0], "n": [1]}, short)


# --- what ends it ---


class Notes:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.log = EventLog(self._take)

    def _take(self, event: str, _facts: Mapping[str, Fact]) -> None:
        self.events.append(event)


def test_work_that_is_done_ends_by_itself() -> None:
    notes = Notes()

    run_watched(trio.lowlevel.checkpoint, registry=lambda: Registry(1, {}), log=notes.log)

    assert notes.events == ["stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_work(number: signal.Signals) -> None:
    notes = Notes()

    async def work() -> None:
        signal.raise_signal(number)
        await trio.sleep_forever()

    run_watched(work, registry=lambda: Registry(1, {}), log=notes.log)

    assert notes.events == ["stopping", "stopped"]


def test_a_registry_that_expires_ends_nothing_and_its_successor_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = Notes()
    registries = [Registry(4, {}, expires=1_000_000)]
    monkeypatch.setattr("sims.deploy.process_control._CLOCK_INTERVAL", 0.01)

    async def work() -> None:
        while "expired" not in notes.events:  # noqa: ASYNC110
            await trio.sleep(0.01)
        registries[0] = Registry(5, {}, expires=2_000_000)
        while "registry in force" not in notes.events:  # noqa: ASYNC110
            await trio.sleep(0.01)

    run_watched(work, registry=lambda: registries[0], log=notes.log, clock=lambda: 1_000_000.0)

    assert notes.events == ["expired", "registry in force", "stopped"]


def test_a_hangup_is_told_and_ends_nothing() -> None:
    told: list[str] = []

    async def work() -> None:
        signal.raise_signal(signal.SIGHUP)
        while not told:  # noqa: ASYNC110
            await trio.sleep(0.01)

    run_watched(
        work, registry=lambda: Registry(1, {}), log=Notes().log, on_hangup=lambda: told.append("hangup")
    )


def test_a_registry_that_is_still_good_ends_nothing() -> None:
    registry = Registry(4, {}, expires=int(time.time()) + 1000)

    run_watched(trio.lowlevel.checkpoint, registry=lambda: registry, log=Notes().log)


def test_why_a_task_failed_is_told_as_it_is() -> None:
    notes = Notes()

    async def fail() -> None:
        raise LedgerError("the disk is full")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(LedgerError, match="the disk is full"):
        run_watched(work, registry=lambda: Registry(1, {}), log=notes.log)
    assert notes.events == ["gave up"]


def test_an_error_of_the_program_is_not_hidden() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        run_watched(work, registry=lambda: Registry(1, {}), log=Notes().log)
    assert caught.group_contains(ZeroDivisionError)


def test_an_interrupt_stays_one() -> None:
    async def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(work, registry=lambda: Registry(1, {}), log=Notes().log)

"""Masks taken off by several processes: the same total, whatever becomes of the workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from threading import Event, Thread, Timer

import numpy as np
import pytest

from secagg import LocalSession, Stage, local_machines, mask_pool_worker
from secagg import mask_pool as pools
from secagg.errors import ParameterError
from secagg.keys import public_key
from secagg.mask_keystream import apply_masks
from secagg.mask_pool import ProcessPool, _Worker
from secagg.mask_pool_worker import ExpansionJob, PortionQueue, agree, claims, expand_shared, serve
from secagg.residue_packing import Residues
from secagg.self_and_pair_masks import OneProcess, PairMasks, Removal, SelfMask, seeds_of
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from tests.attacks.rig import PART, residue_table

SALT = bytes(32)


def self_mask(number: int) -> SelfMask:
    return SelfMask(bytes([number]) * 32, b"info %d" % number)


def pair_masks(number: int, pairs: int) -> PairMasks:
    keys = [public_key(bytes([number, k]) * 16) for k in range(pairs)]
    pairs_of = ((key, b"%d" % k, k % 3 == 0, pair_secret(number, k)) for k, key in enumerate(keys))
    return PairMasks(bytes([number]) * 32, tuple(pairs_of))


def pair_secret(number: int, k: int) -> bytes:
    """Every other pair has none, as if some of the sums were hybrid."""
    return bytes([number, k]) * 16 if k % 2 else b""


REMOVALS: list[Removal] = [self_mask(1), pair_masks(2, 5), self_mask(3), pair_masks(4, 7), self_mask(5)]


def total() -> list[Residues]:
    return [np.arange(1000, dtype=np.uint32), np.arange(7, dtype=np.uint8), np.ones(1, np.uint64)]


def large() -> list[Residues]:
    """More than a round of three processes, with ends of parts that are aligned to nothing."""
    return [
        np.arange(7, dtype=np.uint8),
        np.arange(2_000_003, dtype=np.uint32),
        np.arange(300_001, dtype=np.uint16),
        np.ones(1, np.uint64),
    ]


def taken_off(removals: list[Removal], residues: list[Residues] | None = None) -> list[Residues]:
    residues = total() if residues is None else residues
    OneProcess().take_off(residues, removals, salt=SALT)
    return residues


def same(one: list[Residues], other: list[Residues]) -> bool:
    return all((a == b).all() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(3) as pool:
        yield pool


@pytest.mark.parametrize(
    "removals", [[], REMOVALS[:1], REMOVALS[:2], REMOVALS], ids=["none", "one", "two portions", "many"]
)
def test_several_processes_take_off_what_one_does(pool: ProcessPool, removals: list[Removal]) -> None:
    residues = total()
    pool.take_off(residues, removals, salt=SALT)
    assert same(residues, taken_off(removals))


def test_several_processes_share_a_large_vector(pool: ProcessPool) -> None:
    residues = large()
    for _ in range(2):
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, taken_off(REMOVALS, large())))


MANY: list[Removal] = [SelfMask(bytes(32), b"%d" % k) for k in range(4000)]


@pytest.mark.parametrize("size", [0, 1, 31, 1000, (1 << 16) + 1, 3 << 16])
def test_several_processes_share_many_masks(pool: ProcessPool, size: int) -> None:
    """There are fewer stretches than processes where a vector is short."""
    removals = MANY[: 4000 if size < 10_000 else 300]
    residues: list[Residues] = [np.ones(size, np.uint16), np.ones(size, np.uint8), np.ones(0, np.uint64)]
    expected = taken_off(removals, [part.copy() for part in residues])
    pool.take_off(residues, removals, salt=SALT)
    assert same(residues, expected)


def test_a_vector_of_very_many_parts_is_worked_on_here(pool: ProcessPool) -> None:
    residues: list[Residues] = [np.ones(1, np.uint32) for _ in range(1025)]
    expected = taken_off(REMOVALS, [part.copy() for part in residues])
    pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, expected)


def test_a_process_never_writes_to_one_that_writes() -> None:
    """Both sides have more to say than a pipe holds. Workers that have to be ended end the wait."""
    residues = total()
    with ProcessPool(2) as pool:
        end = Timer(60, pool._workers[0]._process.kill)
        end.start()
        pool.take_off(residues, MANY * 3, salt=SALT)
        end.cancel()
        assert pool._workers[0]._alive
    assert same(residues, taken_off(MANY * 3))


@pytest.mark.parametrize("processes", [2, 3])
def test_workers_do_what_is_left_to_them(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """A process that is ready takes the next portion, of any stretch; here only the workers are ready."""
    residues, here = large(), []
    with ProcessPool(processes) as pool:
        for module in (pools, mask_pool_worker):
            monkeypatch.setattr(module, "claims", lambda _: iter(()))
        monkeypatch.setattr(ExpansionJob, "expand", lambda *args: here.append(args))
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))
    assert here == []


def test_masks_are_added_in_shared_memory_and_not_sent_through_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a worker sends back names portions; the masks, as long as the vector, are never pickled."""
    residues, sizes = large(), []
    with ProcessPool(2) as pool:
        monkeypatch.setattr(pools, "claims", lambda _: iter(()))  # so that the worker expands all masks
        results = pool._workers[0]._results
        receive = results.recv

        def noted() -> object:
            result = receive()
            sizes.append(len(pickle.dumps(result)))
            return result

        monkeypatch.setattr(results, "recv", noted)
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))
    assert 0 < sum(sizes) < sum(part.nbytes for part in residues) / 100


def test_a_pool_knows_what_its_workers_spent() -> None:
    with ProcessPool(2) as pool:
        assert pool.cpu_seconds() == 0
        pool.take_off(total(), REMOVALS, salt=SALT)
        assert pool.cpu_seconds() > 0


def wakings(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the first worker is sent from now on."""
    sent: list[bytes] = []
    tasks = pool._workers[0]._tasks
    send = tasks.send_bytes

    def noted(task: bytes) -> None:
        sent.append(task)
        send(task)

    monkeypatch.setattr(tasks, "send_bytes", noted)
    return sent


def test_workers_that_were_woken_do_what_they_always_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often, and whether or not anything comes of it."""
    with ProcessPool(2) as pool:
        sent = wakings(pool, monkeypatch)
        for _ in range(3):
            pool.get_ready()
        assert sent == [pools._WAKE] * 3
        residues = large()
        pool.take_off(residues, REMOVALS, salt=SALT)
        pool.get_ready()
        assert pool._workers[0]._alive
        assert pool._workers[0]._owed == 0, "there is no answer to a waking"
    assert same(residues, taken_off(REMOVALS, large()))


def test_a_worker_at_work_is_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not read while it works: a full pipe would block the writer."""
    pool = ProcessPool(2)
    sent = wakings(pool, monkeypatch)
    pool.get_ready()
    assert sent == [], "it has not come up yet"
    with pool:
        with pool._lock:
            pool.get_ready()
        assert sent == [], "another thread has it"
        pool.get_ready()
        assert sent == [pools._WAKE]
    pool.get_ready()
    assert sent == [pools._WAKE], "no worker is left"


def test_a_dead_worker_is_not_woken() -> None:
    residues = large()
    with ProcessPool(2) as pool:
        pool._workers[0]._process.kill()
        pool._workers[0]._process.join()
        pool.get_ready()
        assert not pool._workers[0]._alive
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))


def test_who_waits_in_vain_for_a_while_falls_asleep_and_still_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes at once is read at once; what comes late is waited for without turning around."""
    monkeypatch.setattr(mask_pool_worker, "_ATTENTION", 0.02)
    end, start = Pipe(duplex=False)
    start.send("at once")
    assert mask_pool_worker.receive_awake(end) == "at once"
    asleep = Event()
    receive = end.recv

    def noted() -> object:
        asleep.set()
        return receive()

    monkeypatch.setattr(end, "recv", noted)

    def send_late() -> None:
        asleep.wait(60)
        start.send("late")

    sender = Thread(target=send_late)
    sender.start()
    assert mask_pool_worker.receive_awake(end) == "late"
    sender.join()
    start.close()
    with pytest.raises(EOFError):
        mask_pool_worker.receive_awake(end)
    end.close()


def test_a_pool_of_one_is_this_process() -> None:
    residues = total()
    with ProcessPool(1) as pool:
        pool.take_off(residues, REMOVALS, salt=SALT)
        assert pool.cpu_seconds() == 0
    assert same(residues, taken_off(REMOVALS))


@pytest.mark.parametrize("processes", [0, -1, 65])
def test_a_pool_has_some_processes_and_not_too_many(processes: int) -> None:
    with pytest.raises(ParameterError, match="processes must be from 1 to 64"):
        ProcessPool(processes)


def test_a_server_may_expand_in_several_processes(pool: ProcessPool) -> None:
    server, clients = local_machines(
        table=residue_table(100),
        params=SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0.3, sums=1),
        members=range(9),
        expander=pool,
    )
    session = LocalSession(
        server,
        clients,
        lambda member, _: {PART: np.full(100, member, np.uint64)},
        absent=lambda member, stage, _: stage is Stage.MASK and member in (3, 8),
    )
    session.open()
    assert session.ask("vector")[PART].tolist() == [sum(range(9)) - 11] * 100


def test_the_share_of_a_dead_worker_is_done_here() -> None:
    residues = large()
    with ProcessPool(3) as pool:
        pool._workers[0]._process.kill()
        pool._workers[0]._process.join()
        pool.take_off(residues, REMOVALS, salt=SALT)
        assert pool._workers[0].cpu_seconds == 0
        assert pool._workers[1].cpu_seconds > 0
    assert same(residues, taken_off(REMOVALS, large()))


@pytest.mark.parametrize("task", [agree, expand_shared])
def test_a_worker_that_dies_at_work_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, task: Callable[..., object]
) -> None:
    """What it took from the queues is nowhere any more."""
    residues = large()
    lost: list[int] = []
    with ProcessPool(2) as pool:
        start = pool._start

        def start_to_die(function: Callable[..., object], *args: object) -> None:
            if function is task:
                pool._workers[0]._process.kill()
                pool._workers[0]._process.join()
                lost.extend(n for queue in pool._queues for n in islice(claims(queue.end), 2))
            start(function, *args)

        monkeypatch.setattr(pool, "_start", start_to_die)
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert lost
    assert same(residues, taken_off(REMOVALS, large()))


def test_a_worker_that_dies_with_what_it_expanded_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    residues = large()
    with ProcessPool(2) as pool:
        expand = ExpansionJob.expand

        def expand_and_kill(job: ExpansionJob, number: int, portion: int, parts: list[Residues]) -> None:
            pool._workers[0]._process.kill()
            expand(job, number, portion, parts)

        monkeypatch.setattr(ExpansionJob, "expand", expand_and_kill)
        pool.take_off(residues, REMOVALS, salt=SALT)
        assert not pool._workers[0]._alive
    assert same(residues, taken_off(REMOVALS, large()))


class Apprentice:
    """A worker in a thread of this process, so that it is seen at work."""

    def __init__(self, number: int, queues: int) -> None:
        tasks, self.give = Pipe(duplex=False)
        self.take, results = Pipe(duplex=False)
        self.memory = SharedMemory(create=True, size=2 * mask_pool_worker.SLOT_BYTES)
        self.queues = [PortionQueue() for _ in range(queues)]
        ends = [queue.end for queue in self.queues]
        self._thread = Thread(target=serve, args=(tasks, results, self.memory.name, number, ends))
        self._thread.start()
        assert self.take.recv() == (None, 0.0)

    def asked(self, function: Callable[..., object], *args: object) -> object:
        self.give.send((function, args))
        result, seconds = self.take.recv()
        assert seconds > 0
        return result

    def end(self) -> None:
        self.give.send(None)
        self._thread.join()
        self.memory.close()
        self.memory.unlink()
        for queue in self.queues:
            queue.close()


@pytest.fixture
def apprentice() -> Iterator[Apprentice]:
    """The second of three."""
    worker = Apprentice(1, 3)
    yield worker
    worker.end()


def test_a_worker_that_is_woken_says_nothing_and_listens(apprentice: Apprentice) -> None:
    apprentice.give.send_bytes(pools._WAKE)
    apprentice.queues[0].fill(1)
    assert apprentice.asked(agree, [REMOVALS], SALT) == {0: seeds_of(REMOVALS, salt=SALT)}
    assert not apprentice.take.poll()


def test_a_worker_agrees_on_what_it_takes(apprentice: Apprentice) -> None:
    apprentice.queues[0].fill(3)
    assert next(claims(apprentice.queues[0].end)) == 0, "another process was quicker"
    found = apprentice.asked(agree, [REMOVALS, REMOVALS[:2], REMOVALS[2:]], SALT)
    assert found == {1: seeds_of(REMOVALS[:2], salt=SALT), 2: seeds_of(REMOVALS[2:], salt=SALT)}
    assert apprentice.asked(agree, [REMOVALS], SALT) == {}


LAYOUT = ((1000, "<u4"), (7, "|u1"), (1, "<u8"))


def seen(memory: SharedMemory, slot: int) -> list[Residues]:
    return [part.copy() for part in mask_pool_worker.shared_views(memory, LAYOUT, slot)]


def test_a_worker_expands_its_own_stretch_and_helps_with_one_more(apprentice: Apprentice) -> None:
    """Whatever was there is overwritten, and a third stretch finds no room."""
    assert apprentice.memory.buf is not None
    apprentice.memory.buf[:] = bytes([1]) * len(apprentice.memory.buf)
    job = ExpansionJob(
        tuple((LAYOUT, skip) for skip in (0, 16, 5)),
        [seeds_of(removals, salt=SALT) for removals in (REMOVALS[:2], REMOVALS[2:])],
    )
    for queue in apprentice.queues:
        queue.fill(2)
    assert next(claims(apprentice.queues[2].end)) == 0

    assert apprentice.asked(expand_shared, job) == [(1, [0, 1]), (2, [1])]

    for slot, (skip, seeds) in enumerate(((16, seeds_of(REMOVALS, salt=SALT)), (5, job.portions[1]))):
        expected: list[Residues] = [np.zeros(size, dtype) for size, dtype in LAYOUT]
        apply_masks(expected, plus=seeds[0], minus=seeds[1], skip=skip)
        assert same(seen(apprentice.memory, slot), expected)
    assert list(claims(apprentice.queues[0].end)) == [0, 1]


def test_a_worker_leaves_memory_alone_where_nothing_is_left(apprentice: Apprentice) -> None:
    assert apprentice.memory.buf is not None
    apprentice.memory.buf[:] = bytes([1]) * len(apprentice.memory.buf)
    job = ExpansionJob(((LAYOUT, 0), (LAYOUT, 0)), [seeds_of(REMOVALS, salt=SALT)])
    apprentice.queues[0].fill(1)

    assert apprentice.asked(expand_shared, job) == [(0, [0])]

    assert same(seen(apprentice.memory, 0), taken_off(REMOVALS, [np.zeros(n, t) for n, t in LAYOUT]))
    assert set(bytes(apprentice.memory.buf[mask_pool_worker.SLOT_BYTES :])) == {1}


def test_a_pool_that_was_closed_goes_on_as_one_process() -> None:
    residues = large()
    pool = ProcessPool(2)
    pool.close()
    pool.close()
    pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))


@pytest.mark.parametrize(("pipe", "step"), [("_tasks", "send_bytes"), ("_results", "recv")])
def test_after_an_interrupt_no_answer_is_taken_for_another(
    monkeypatch: pytest.MonkeyPatch, pipe: str, step: str
) -> None:
    """After an interrupt it is unknown what is still in the worker's pipes."""

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    with ProcessPool(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(getattr(pool._workers[0], pipe), step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.take_off(large(), REMOVALS, salt=SALT)
        residues = large()
        pool.take_off(residues, REMOVALS, salt=SALT)
        assert not pool._workers[0]._alive
    assert same(residues, taken_off(REMOVALS, large()))


def test_an_interrupt_leaves_the_workers_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with ProcessPool(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(ExpansionJob, "expand", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.take_off(large(), REMOVALS, salt=SALT)
        assert [list(claims(queue.end)) for queue in pool._queues] == [[], []]
        residues = large()
        pool.take_off(residues, REMOVALS, salt=SALT)
        assert pool._workers[0]._alive
    assert same(residues, taken_off(REMOVALS, large()))


def test_a_queue_forgets_what_was_left_in_it() -> None:
    queue = PortionQueue()
    queue.fill(256)
    assert [number for number, _ in zip(claims(queue.end), range(3), strict=False)] == [0, 1, 2]
    queue.fill(2)
    assert list(claims(queue.end)) == [0, 1]
    queue._start.close()
    assert list(claims(queue.end)) == [], "no process fills it any more"
    queue.close()


def test_two_threads_may_share_a_pool(pool: ProcessPool) -> None:
    vectors = [large() for _ in range(4)]
    threads = [Thread(target=pool.take_off, args=(v, REMOVALS), kwargs={"salt": SALT}) for v in vectors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(vector, taken_off(REMOVALS, large())) for vector in vectors)


def test_a_pool_that_cannot_be_had_whole_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[_Worker] = []
    begin = _Worker._begin

    def begin_twice(worker: _Worker, number: int, queues: list[Connection]) -> None:
        begun.append(worker)
        if len(begun) == 3:
            raise OSError("no more processes")
        begin(worker, number, queues)

    monkeypatch.setattr(_Worker, "_begin", begin_twice)
    with pytest.raises(OSError, match="no more processes"):
        ProcessPool(4)
    assert not any(worker._process.is_alive() for worker in begun[:2])
    for worker in begun:
        with pytest.raises(FileNotFoundError):
            SharedMemory(worker._memory.name)


def test_secrets_stay_out_of_what_is_printed() -> None:
    assert "secret" not in repr(self_mask(1))
    assert "mask_key" not in repr(pair_masks(2, 1))
    assert "seed" not in repr(ExpansionJob((), [([b"seed"], [b"seed"])]))

"""Masks taken off by several processes: the same total, whatever becomes of the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.shared_memory import SharedMemory
from threading import Thread

import numpy as np
import pytest

from secagg import LocalSession, Stage, local_machines
from secagg.errors import ParameterError
from secagg.expansion import OneProcess
from secagg.keys import public_key
from secagg.masking import PairMasks, Removal, SelfMask, seeds_of
from secagg.pool import ProcessPool, _serve, _Worker, agree, expand_shared
from secagg.ring import Residues
from secagg.testing.rig import PART, residue_table

SALT = bytes(32)


def self_mask(number: int) -> SelfMask:
    return SelfMask(bytes([number]) * 32, b"info %d" % number)


def pair_masks(number: int, pairs: int) -> PairMasks:
    keys = [public_key(bytes([number, k]) * 16) for k in range(pairs)]
    return PairMasks(bytes([number]) * 32, tuple((key, b"%d" % k, k % 3 == 0) for k, key in enumerate(keys)))


REMOVALS: list[Removal] = [self_mask(1), pair_masks(2, 5), self_mask(3), pair_masks(4, 7), self_mask(5)]


def total() -> list[Residues]:
    return [np.arange(1000, dtype=np.uint32), np.arange(7, dtype=np.uint8), np.ones(1, np.uint64)]


def large() -> list[Residues]:
    """More than one stretch for each of three processes, with ends of parts that are aligned to nothing."""
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


@pytest.mark.parametrize("removals", [[], REMOVALS[:1], REMOVALS], ids=["none", "one", "many"])
def test_several_processes_take_off_what_one_does(pool: ProcessPool, removals: list[Removal]) -> None:
    residues = total()
    pool.take_off(residues, removals, salt=SALT)
    assert same(residues, taken_off(removals))


def test_several_processes_share_a_large_vector(pool: ProcessPool) -> None:
    residues = large()
    for _ in range(2):
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, taken_off(REMOVALS, large())))


def test_a_pool_knows_what_its_workers_spent() -> None:
    with ProcessPool(2) as pool:
        assert pool.cpu_seconds() == 0
        pool.take_off(total(), REMOVALS, salt=SALT)
        assert pool.cpu_seconds() > 0


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
        trust="curious_server",
        members=range(9),
        corrupt=1,
        dropout=0.3,
        sums=1,
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


def test_a_worker_that_dies_at_work_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    residues = large()
    with ProcessPool(2) as pool:
        worker = pool._workers[0]
        start = worker.start

        def start_to_die(function: Callable[..., object], *args: object) -> None:
            if function is expand_shared:
                worker._process.kill()
            else:
                start(function, *args)

        monkeypatch.setattr(worker, "start", start_to_die)
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))


def test_a_worker_works_until_its_pipe_is_closed() -> None:
    """In a thread of this process, so that it is seen at work."""
    tasks, give = Pipe(duplex=False)
    take, results = Pipe(duplex=False)
    memory = SharedMemory(create=True, size=1 << 14)
    worker = Thread(target=_serve, args=(tasks, results, memory.name))
    worker.start()
    assert take.recv() == (None, 0.0)
    give.send((agree, (REMOVALS, SALT)))
    seeds, _ = take.recv()
    assert seeds == seeds_of(REMOVALS, salt=SALT)
    assert memory.buf is not None
    memory.buf[:] = bytes([1]) * len(memory.buf)  # whatever was there is overwritten
    give.send((expand_shared, (((1000, "<u4"), (7, "|u1"), (1, "<u8")), seeds, 0, True)))
    done, seconds = take.recv()
    assert done
    assert seconds > 0
    give.send((expand_shared, (((1000, "<u4"), (7, "|u1"), (1, "<u8")), seeds, 0, False)))
    assert take.recv()[0]
    give.send(None)
    worker.join()
    once = taken_off(REMOVALS, [np.zeros_like(p) for p in total()])
    expected = b"".join(part.tobytes() for part in taken_off(REMOVALS, once))
    assert bytes(memory.buf[:4000]) == expected[:4000]
    memory.close()
    memory.unlink()


def test_a_pool_that_was_closed_goes_on_as_one_process() -> None:
    residues = large()
    pool = ProcessPool(2)
    pool.close()
    pool.close()
    pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))


def test_after_an_interrupt_no_answer_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is interrupted while it waits does not know what is still in the pipe."""

    def interrupted() -> object:
        raise KeyboardInterrupt

    with ProcessPool(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(pool._workers[0]._results, "recv", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.take_off(large(), REMOVALS, salt=SALT)
        residues = large()
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert same(residues, taken_off(REMOVALS, large()))


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

    def begin_twice(worker: _Worker) -> None:
        begun.append(worker)
        if len(begun) == 3:
            raise OSError("no more processes")
        begin(worker)

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

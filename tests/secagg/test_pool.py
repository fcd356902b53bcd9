"""Masks taken off by several processes: the same total, whatever becomes of the workers."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from threading import Thread

import numpy as np
import pytest

from secagg import LocalSession, Stage, local_machines
from secagg.errors import ParameterError
from secagg.expansion import OneProcess
from secagg.keys import public_key
from secagg.masking import PairMasks, Removal, SelfMask
from secagg.pool import ProcessPool, _serve
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


def taken_off(removals: list[Removal]) -> list[Residues]:
    residues = total()
    OneProcess().take_off(residues, removals, salt=SALT)
    return residues


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(3) as pool:
        yield pool


@pytest.mark.parametrize("removals", [[], REMOVALS[:1], REMOVALS], ids=["none", "one", "many"])
def test_several_processes_take_off_what_one_does(pool: ProcessPool, removals: list[Removal]) -> None:
    residues = total()
    pool.take_off(residues, removals, salt=SALT)
    assert all((a == b).all() for a, b in zip(residues, taken_off(removals), strict=True))


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
    assert all((a == b).all() for a, b in zip(residues, taken_off(REMOVALS), strict=True))


@pytest.mark.parametrize("processes", [0, -1, 257])
def test_a_pool_has_some_processes_and_not_too_many(processes: int) -> None:
    with pytest.raises(ParameterError, match="processes must be from 1 to 256"):
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
    residues = total()
    with ProcessPool(3) as pool:
        pool._workers[0]._process.kill()
        pool._workers[0]._process.join()
        pool.take_off(residues, REMOVALS, salt=SALT)
        assert pool._workers[0].cpu_seconds == 0
        assert pool._workers[1].cpu_seconds > 0
    assert all((a == b).all() for a, b in zip(residues, taken_off(REMOVALS), strict=True))


def test_a_worker_that_dies_at_work_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    residues = total()
    with ProcessPool(2) as pool:
        worker = pool._workers[0]

        def start_to_die(_task: object) -> bool:
            worker._process.kill()
            return True

        monkeypatch.setattr(worker, "start", start_to_die)
        pool.take_off(residues, REMOVALS, salt=SALT)
    assert all((a == b).all() for a, b in zip(residues, taken_off(REMOVALS), strict=True))


def test_a_worker_works_until_its_pipe_is_closed() -> None:
    """In a thread of this process, so that it is seen at work."""
    ours, theirs = Pipe()
    worker = Thread(target=_serve, args=(theirs,))
    worker.start()
    assert ours.recv() == "ready"
    residues = [np.zeros_like(part) for part in total()]
    ours.send((tuple((len(part), part.dtype.str) for part in residues), REMOVALS, SALT))
    assert ours.recv() > 0
    changes = [ours.recv_bytes() for _ in residues]
    ours.close()
    worker.join()
    OneProcess().take_off(residues, REMOVALS, salt=SALT)
    assert changes == [part.tobytes() for part in residues]


def test_a_pool_that_was_closed_goes_on_as_one_process() -> None:
    residues = total()
    pool = ProcessPool(2)
    pool.close()
    pool.take_off(residues, REMOVALS, salt=SALT)
    assert all((a == b).all() for a, b in zip(residues, taken_off(REMOVALS), strict=True))


def test_secrets_stay_out_of_what_is_printed() -> None:
    assert "secret" not in repr(self_mask(1))
    assert "mask_key" not in repr(pair_masks(2, 1))

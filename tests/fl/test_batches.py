"""Which samples a step sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fl.batches import BatchSampler

SAMPLES, SIZES = st.integers(1, 40), st.integers(1, 12)


@given(count=SAMPLES, size=SIZES, epochs=st.integers(1, 3), call=st.integers(0, 5))
def test_every_pass_sees_every_sample_once(count: int, size: int, epochs: int, call: int) -> None:
    per_epoch = -(-count // size)
    order = BatchSampler(count, size, seed=1, client=2).of_call(call, epochs * per_epoch)
    for epoch in range(epochs):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = np.concatenate([order.of_step(step) for step in steps])
        assert sorted(seen.tolist()) == list(range(count))
        sizes = [len(order.of_step(step)) for step in steps]
        assert set(sizes[:-1]) <= {size}, "all but the last are whole"
        assert sizes[-1] == count - size * (per_epoch - 1)


@given(count=SAMPLES, size=SIZES, steps=st.integers(0, 20), more=st.integers(1, 20))
def test_more_steps_begin_with_the_same(count: int, size: int, steps: int, more: int) -> None:
    batches = BatchSampler(count, size, seed=3, client=0)
    short, long = batches.of_call(4, steps), batches.of_call(4, steps + more)
    assert (short.steps, long.steps) == (steps, steps + more)
    for step in range(steps):
        assert np.array_equal(short.of_step(step), long.of_step(step))


def test_a_training_depends_on_seed_client_and_call_alone() -> None:
    def seen(seed: int, client: int, call: int) -> tuple[int, ...]:
        order = BatchSampler(30, 10, seed, client).of_call(call, 6)
        return tuple(np.concatenate([order.of_step(step) for step in range(6)]).tolist())

    named = [(seed, client, call) for seed in range(3) for client in range(3) for call in range(3)]
    drawn = [seen(*each) for each in named]
    assert len(set(drawn)) == len(named)
    assert [seen(*each) for each in reversed(named)] == drawn[::-1]
    assert drawn[0][:30] != drawn[0][30:], "the second pass has an order of its own"


def test_whoever_takes_everything_needs_no_order() -> None:
    for size in (None, 5, 6):
        batches = BatchSampler(5, size, 0, 0)
        assert batches.full
        order = batches.of_call(9, 3)
        assert order.steps == 3
        assert [order.of_step(step).tolist() for step in range(3)] == [[0, 1, 2, 3, 4]] * 3
    assert not BatchSampler(5, 4, 0, 0).full


def test_numbers_for_the_lots_of_a_model_are_all_different() -> None:
    named = [(seed, client, call) for seed in range(4) for client in range(4) for call in range(4)]
    numbers = [BatchSampler(3, 2, seed, client).layer_seed(call) for seed, client, call in named]
    assert len(set(numbers)) == len(named)
    assert numbers == [BatchSampler(9, None, seed, client).layer_seed(call) for seed, client, call in named]

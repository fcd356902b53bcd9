"""Seeds of masks: bound to everything both ends must agree on, and unrelated wherever anything differs.

False alarms of the statistical tests here, over the choice of the fixed keys: below 2e-7 in all.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from secagg.hashing import digest
from secagg.insecure_seeds import SeededRandom
from secagg.keys import Agreement, envelope_info, mask_context, pair_info, public_key, self_mask_seed
from tests.secagg.chance import coin_slack

SESSIONS, SUMS, CLIENTS = 4, 4, 6


def context(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "session": digest("test session"),
        "sum_index": 3,
        "query": digest("test query"),
        "spec": digest("test spec"),
        "cohort": digest("test cohort"),
        "roster": b"\x3f",
    }
    return mask_context(**{**fields, **changes})


def pair_seed(one: int, other: int, *, sum_index: int, session: bytes, shared: bytes) -> bytes:
    """The seed as client `one` derives it. The one-time keys depend on the client, sum and session."""
    mine = SeededRandom(b"key", session, bytes([one, sum_index]))(32)
    theirs = SeededRandom(b"key", session, bytes([other, sum_index]))(32)
    return Agreement(mine).derive(public_key(theirs), salt=session, info=pair_info(shared, one, other))


def self_seed(owner: int, *, sum_index: int, session: bytes, shared: bytes) -> bytes:
    secret = SeededRandom(b"self", session, bytes([owner, sum_index]))(32)
    return self_mask_seed(secret, session=session, context=shared, owner=owner)


def all_seeds() -> list[bytes]:
    """Of several sessions, sums, pairs and clients, as a deployment would derive them."""
    seeds = []
    for number in range(SESSIONS):
        session = digest("test session", bytes([number]))
        for index in range(SUMS):
            shared = context(session=session, sum_index=index)
            same: dict[str, Any] = {"sum_index": index, "session": session, "shared": shared}
            seeds += [pair_seed(a, b, **same) for a, b in combinations(range(CLIENTS), 2)]
            seeds += [self_seed(k, **same) for k in range(CLIENTS)]
    return seeds


def test_seeds_of_different_sums_pairs_and_sessions_are_unrelated() -> None:
    """Any two differ in about half of their 256 bits, and no bit of a seed prefers a value."""
    seeds = [int.from_bytes(seed, "big") for seed in all_seeds()]
    assert len(seeds) == SESSIONS * SUMS * (15 + CLIENTS) == 336
    pairs = list(combinations(seeds, 2))
    slack = coin_slack(256, chance=1e-7 / len(pairs))
    assert slack < 64
    for one, other in pairs:
        assert abs((one ^ other).bit_count() - 128) < slack
    for bit in range(256):
        ones = sum(seed >> bit & 1 for seed in seeds)
        assert abs(ones - len(seeds) / 2) < coin_slack(len(seeds), chance=1e-7 / 256)


def test_the_two_halves_of_a_seed_are_unrelated() -> None:
    """The AES key and the first counter block: 128 bits each."""
    halves = {half for seed in all_seeds() for half in (seed[:16], seed[16:])}
    assert len(halves) == 2 * len(all_seeds())


CHANGES: dict[str, Any] = {
    "session": digest("another session"),
    "sum_index": 4,
    "query": digest("another query"),
    "spec": digest("another spec"),
    "cohort": digest("another cohort"),
    "roster": b"\x1f",
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_of_the_context_changes_both_kinds_of_seed(field: str) -> None:
    """With the same keys and the same salt: what two clients were shown differently never cancels."""
    session, changed = digest("salt"), context(**{field: CHANGES[field]})
    same: dict[str, Any] = {"sum_index": 0, "session": session}
    assert context() != changed
    assert pair_seed(1, 2, shared=context(), **same) != pair_seed(1, 2, shared=changed, **same)
    assert self_seed(1, shared=context(), **same) != self_seed(1, shared=changed, **same)


def test_no_two_contexts_of_different_fields_meet() -> None:
    contexts = [context(), *(context(**{field: value}) for field, value in CHANGES.items())]
    contexts.append(context(query=digest("test spec"), spec=digest("test query")))
    contexts.append(context(cohort=digest("test cohort") + b"\x3f", roster=b""))
    assert len(set(contexts)) == len(contexts)


def test_both_ends_of_a_pair_derive_the_same_seed() -> None:
    same: dict[str, Any] = {"sum_index": 0, "session": digest("s"), "shared": context()}
    assert pair_seed(1, 2, **same) == pair_seed(2, 1, **same)


def test_the_pair_is_in_the_seed() -> None:
    """The same keys under other ids, as after a swap of two clients' places, give another seed."""
    infos = [pair_info(context(), a, b) for a, b in combinations(range(CLIENTS), 2)]
    infos.append(pair_info(context(), 1, 1 << 31))
    assert len(set(infos)) == len(infos)
    assert pair_info(context(), 4, 9) == pair_info(context(), 9, 4)
    one = Agreement(bytes(range(32)))
    key = public_key(bytes(range(1, 33)))
    seeds = {one.derive(key, salt=bytes(32), info=info) for info in infos}
    assert len(seeds) == len(infos)


def test_the_salt_is_in_the_seed() -> None:
    key, info = public_key(bytes(range(32))), pair_info(context(), 0, 1)
    agreement = Agreement(bytes(range(1, 33)))
    assert agreement.derive(key, salt=b"a", info=info) != agreement.derive(key, salt=b"b", info=info)
    one = self_mask_seed(bytes(32), session=b"a", context=context(), owner=0)
    assert one != self_mask_seed(bytes(32), session=b"b", context=context(), owner=0)


def test_the_owner_is_in_the_seed_of_its_own_mask() -> None:
    seeds = {self_mask_seed(bytes(32), session=b"", context=context(), owner=k) for k in range(10)}
    assert len(seeds) == 10


def test_self_and_pair_masks_differ_even_from_one_secret() -> None:
    """Were the labels missing, a client paired with itself would derive its own mask."""
    secret = bytes(range(32))
    shared_point = Agreement(secret).derive(public_key(bytes(32)), salt=b"", info=pair_info(context(), 1, 1))
    assert shared_point != self_mask_seed(secret, session=b"", context=context(), owner=1)
    infos = {pair_info(context(), 1, 2), envelope_info(1, 2), envelope_info(2, 1)}
    assert len(infos) == 3

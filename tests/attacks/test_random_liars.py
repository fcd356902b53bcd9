"""Two thousand trials with drawn liars: no honest client is convicted, every released total is exact, and all
evidence holds. An error names the seed of its trial: `run_trial(seed)` replays it alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pytest

from secagg import errors, server
from secagg.convictions import Convictions
from secagg.deposits import Deposits
from secagg.evidence import Offence
from secagg.hybrid_keys import PAIR_SECRET_BYTES, padded
from secagg.sum_unmasking import Tally
from tests.attacks.attackers.random_liars import KINDS
from tests.attacks.guards import believe_shares, believe_tags
from tests.attacks.trials import Figures, run_trial

SAMPLE: Final = range(40)
TRIALS: Final = range(2000)
BLOCK: Final = 1000


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_trial(seed: int) -> None:
    run_trial(seed)


def test_a_trial_can_be_replayed() -> None:
    assert run_trial(2) == run_trial(2) != run_trial(3)


def failures(seeds: Iterable[int], figures: Figures | None = None) -> Iterator[str]:
    """Run trials, and yield the errors of those that fail. Those that do not are added to `figures`."""
    for seed in seeds:
        try:
            found = run_trial(seed)
        except AssertionError as error:
            yield str(error)
        else:
            if figures is not None:
                figures.add(found)


@pytest.mark.slow
@pytest.mark.parametrize("start", TRIALS[::BLOCK])
def test_a_thousand_trials_show_every_offence_and_tell_every_lie(start: int) -> None:
    figures = Figures()
    assert list(failures(range(start, start + BLOCK), figures)) == []
    assert figures.offences.keys() == set(Offence)
    assert {kind for kind, _ in figures.shown} == set(KINDS)
    assert figures.convictions.keys() == {each.__name__ for each in errors.Lie.__subclasses__()}
    assert figures.counts["sums released"] > 3 * BLOCK
    assert figures.counts["honest clients excluded by a dispute"] > 0


# --- what trials find ------------------------------------------------------------------------------


def expect_fewer_liars(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(server, "liars_around", lambda corrupt, threshold: min(corrupt, threshold - 1) - 1)


def settle_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Convictions, "settle", lambda *_: iter(()))


def compare_no_words(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tally, "disputes", lambda _: [])


def look_for_no_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tally, "_count_liars", lambda _: ())


def ask_for_no_shares(patch: pytest.MonkeyPatch) -> None:
    """A server that reconstructs secrets from too few shares, if holders reported the others."""
    patch.setattr(Tally, "_check_shares", lambda _: None)


def believe_deposits(patch: pytest.MonkeyPatch) -> None:
    """A server that does not compare what a deposit opens to with its tag."""

    def opened(
        self: Deposits, owner: int, peers: Iterable[int], sum_index: int, secret: bytes
    ) -> dict[int, bytes]:
        cohort = self._cohort
        return {
            peer: padded(
                self._one(owner, peer, sum_index)[:PAIR_SECRET_BYTES],
                secret=secret,
                session=cohort.session,
                owner=cohort.ids[owner],
                peer=cohort.ids[peer],
                sum_index=sum_index,
            )
            for peer in peers
        }

    patch.setattr(Deposits, "opened", opened)


# A server without a guard -> what some trial then finds.
GUARDS: Final[dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]]] = {
    "number of liars": (expect_fewer_liars, r"seed \d+: .*honest client \d+ was convicted.*"),
    "settlement": (settle_nothing, r"seed \d+: .*no liar was removed"),
    "words": (compare_no_words, r"seed \d+: .*no liar was removed"),
    "counts": (look_for_no_count, r"seed \d+: .*no liar was removed"),
    "tags": (believe_tags, r"seed \d+: Unproven: .*"),
    "secrets": (believe_shares, r"seed \d+: .*not that of its contributors' inputs"),
    "shares": (ask_for_no_shares, r"seed \d+: Unproven: .*"),
    "deposits": (believe_deposits, r"seed \d+: .*honest client \d+ was convicted: FalseWord"),
}


QUICK: Final = ("settlement", "words", "tags")  # one of the first trials fails


@pytest.mark.parametrize(
    "guard", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in GUARDS]
)
def test_a_server_without_a_guard_is_found_out(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, found = GUARDS[guard]
    remove(monkeypatch)
    assert any(re.fullmatch(found, error, re.DOTALL) for error in failures(TRIALS[:BLOCK]))

"""A journal writes everything that happens once, however often a peer makes it happen."""

from __future__ import annotations

import logging

import pytest

from secagg.net import journal as module
from secagg.net.journal import Journal
from tests.secagg.net.rig import Diary


def test_every_note_is_written() -> None:
    diary = Diary()
    journal = Journal(diary)
    for _ in range(3):
        journal.note("asked", sum=1)
    assert diary == [("asked", {"sum": 1})] * 3


def test_what_a_peer_can_repeat_is_written_once_and_counted() -> None:
    diary = Diary()
    journal = Journal(diary)
    for _ in range(1000):
        journal.once("refused", host="h", reason="r")
    journal.once("refused", host="h", reason="other")
    assert diary == [("refused", {"host": "h", "reason": "r"}), ("refused", {"host": "h", "reason": "other"})]
    journal.repeated()
    assert diary[2:] == [("repeated", {"what": "refused", "times": 1000, "host": "h", "reason": "r"})]


def test_after_the_count_it_begins_anew() -> None:
    diary = Diary()
    journal = Journal(diary)
    for _ in range(2):
        journal.once("late", member=1)
        journal.repeated()
    assert diary == [("late", {"member": 1})] * 2
    journal.repeated()
    assert len(diary) == 2


def test_it_remembers_only_so_many_different_things() -> None:
    diary = Diary()
    journal = Journal(diary)
    for number in range(2 * module._REMEMBERED):
        journal.once("refused", reason=number)
        journal.once("refused", reason=0)
    assert len(diary) == module._REMEMBERED
    diary.clear()
    journal.repeated()
    more = {"what": "more than could be told apart", "entries": module._REMEMBERED}
    assert diary == [
        ("repeated", {"what": "refused", "times": 2 * module._REMEMBERED + 1, "reason": 0}),
        ("repeated", more),
    ]
    diary.clear()
    journal.repeated()
    assert diary == []


def test_as_many_as_it_remembers_are_told_apart() -> None:
    diary = Diary()
    journal = Journal(diary)
    for number in range(module._REMEMBERED):
        journal.once("refused", reason=number)
    diary.clear()
    journal.repeated()
    assert diary == []


def test_without_a_sink_entries_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="secagg.net"):
        Journal().note("left", member=7, reason="lost its connection")
    assert caplog.messages == ["left member=7 reason=lost its connection"]

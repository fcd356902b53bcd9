"""Records the answers of one session in a client's memory, and charges each of them once.

In a sum whose parts all have noise, an answer is charged before the values are looked at. The time that it
takes to compute them, and whether they can be used, may then depend on private data, but it stays unseen for
free: a client that fails there has paid as much as one that answers.
"""

from __future__ import annotations

from secagg.client_memory import AnswerEntry, Memory
from secagg.differencing_rules import SumSequence
from secagg.policy import Policy
from secagg.query_context import Question
from secagg.sum_group_rules import GroupBook
from secagg.sum_spec import Table


class AnswerRecorder:
    """Writes answers to `memory`, which checks them against the budget of `policy`, and to `groups`."""

    def __init__(self, table: Table, policy: Policy, memory: Memory, groups: GroupBook) -> None:
        self._table = table
        self._policy = policy
        self._memory = memory
        self._groups = groups
        self._recorded: Question | None = None  # the last question whose answer was recorded

    def record(self, question: Question, sequences: tuple[SumSequence, ...]) -> None:
        """Record the answer to `question` and its cost. Return when both are stored safely; do nothing if
        they were recorded before. `sequences` are those to which the sum belongs. Raises `PolicyError`
        beyond the budget, and what the memory raises if it cannot store the answer."""
        if question is self._recorded:
            return
        query, adjacency = question.query, self._policy.adjacency
        entry = AnswerEntry.to(question, self._table, adjacency=adjacency, sequences=sequences)
        self._memory.remember_answer(entry, self._policy.budget)
        self._groups.answer(query.kind, query.round)
        self._recorded = question

"""Shrunken sum: every client is told of different survivors, and a total over two clients comes out.

Even with a threshold that keeps both kinds of share of a client apart (2t > n), the views of single clients
can be cut so that all but two clients are dead to a threshold of others: every set is large enough, and yet
the server computes the sum of two. This is why clients sign one survivor set and count signatures before
they reveal. The attack needs n = 2t - 1, the smallest safe threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from secagg.cohort_members import Cohort
from secagg.insecure_seeds import seeded_identity
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Rig

Views: TypeAlias = Mapping[int, tuple[int, ...]]  # client -> the survivors it is told
Evidence: TypeAlias = Callable[[CheatedSum, int, tuple[int, ...]], Mapping[int, bytes]]

ALIVE = 2  # the first two clients are in everybody's view


def cut_views(cohort: Cohort) -> Views:
    """Views of at least a threshold of survivors in which all but two clients are dead to a threshold."""
    members, threshold = cohort.ids, cohort.threshold
    dead: dict[int, set[int]] = {member: set() for member in members}
    for target in members[ALIVE:]:
        others = sorted((k for k in members if k != target), key=lambda k: len(dead[k]))
        for member in others[:threshold]:
            dead[member].add(target)
    return {member: tuple(k for k in members if k not in dead[member]) for member in members}


def shrunken_sum(rig: Rig, cohort: Cohort, evidence: Evidence | None) -> Vector | None:
    """The sum of the first two clients. `evidence` makes the signatures each client is shown.

    Without evidence, the list of survivors itself is passed off as the request to unmask.
    """
    cheated, views = _asked(rig, cohort), cut_views(cohort)
    for member, survivors in views.items():
        cheated.tell([member], survivors)
    if evidence is not None:
        for member, survivors in views.items():
            cheated.confirm([member], survivors, evidence(cheated, member, survivors))
    return cheated.total(cohort.ids[:ALIVE])


def shrunken_by_second_lists(rig: Rig, cohort: Cohort) -> Vector | None:
    """The same with genuine signatures: whoever signs a second list of survivors signs any view."""
    cheated, views = _asked(rig, cohort), cut_views(cohort)
    for survivors in dict.fromkeys(views.values()):
        cheated.tell(survivors, survivors)
    for member, survivors in views.items():
        cheated.tell([member], survivors)
        cheated.confirm([member], survivors)
    return cheated.total(cohort.ids[:ALIVE])


def _asked(rig: Rig, cohort: Cohort) -> CheatedSum:
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(cohort.ids)
    return cheated


# --- what a client may be shown instead of a quorum ------------------------------------------------


def own_signature(cheated: CheatedSum, _member: int, survivors: tuple[int, ...]) -> dict[int, bytes]:
    """The genuine signatures on this view: too few of them."""
    return cheated.signatures_on(survivors)


def forged_signatures(cheated: CheatedSum, _member: int, survivors: tuple[int, ...]) -> dict[int, bytes]:
    """A quorum signed with a key of the server's own."""
    positions = tuple(cheated.cohort.position[k] for k in survivors)
    forger = seeded_identity(b"forger", 0)
    signature = forger.sign("survivors", *cheated.question.confirmed_fields(positions))
    return dict.fromkeys(survivors, signature)


def signatures_of_the_dead(cheated: CheatedSum, _member: int, survivors: tuple[int, ...]) -> dict[int, bytes]:
    """A quorum that counts clients outside the view: each signed the view it was shown."""
    dead = [k for k in cheated.cohort.ids if k not in survivors]
    others = {k: signed[k] for signed in cheated.signatures.values() for k in dead if k in signed}
    return {**cheated.signatures_on(survivors), **others}

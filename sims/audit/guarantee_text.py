"""Says in sentences what the guarantee of a run means: for ``secagg audit``, and for the page of a report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sims import text_format
from sims.audit.audit_result import Audit, Release
from sims.text_format import counted


class Strength(StrEnum):
    """How strong a guarantee is, in a word. `most` is the largest epsilon of each."""

    VERY_STRONG = "very strong"
    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"
    HARDLY_ANY = "hardly any"
    NONE = "none"

    @classmethod
    def of(cls, epsilon: float | None) -> Strength:
        if epsilon is None:
            return cls.NONE
        return next(strength for strength, most in SCALE if epsilon <= most)


# The largest epsilon of each word. A guess that was right with 50 % becomes right with 53, 74, 96, 99.97 %.
SCALE: Final = (
    (Strength.VERY_STRONG, 0.1),
    (Strength.STRONG, 1.0),
    (Strength.MODERATE, 3.0),
    (Strength.WEAK, 8.0),
    (Strength.HARDLY_ANY, math.inf),
)

_PURPOSES: Final = {
    "training": "the training",
    "evaluation": "the measurements of the model",
    "tail": "the histograms of errors",
}
# What two cases nobody can tell apart well, by adjacency.
_CASES: Final = {
    "zero-out": "a client sent its own data, or only zeros",
    "add-remove": "a client took part, or did not",
    "replace": "a client had its own data, or any other data",
}


_NOT_AGAINST_ALL: Final = ", but it holds only against whoever sees totals and nothing else"


def guess_at_most(epsilon: float, prior: float = 0.5) -> float:
    """Return how likely a guess about one client can become right at most, if it was right with probability
    `prior` before. Delta is ignored."""
    return prior / (prior + (1 - prior) * math.exp(-epsilon))


def guess_text(epsilon: float) -> str:
    """Return in how many cases that is, for a prior of one half: rounded up, and never as 100 %."""
    share = guess_at_most(epsilon)
    for digits in (0, 2, 4):
        shown = math.ceil(share * 10 ** (digits + 2)) / 10**digits
        if shown < 100:
            return f"up to {shown:.{digits}f} % of cases"
    return "practically all cases"


def exposed(audit: Audit) -> str:
    """Return why noise and masks protect nobody in this run, whatever epsilon says; empty if they do."""
    if audit.subject.is_plain:
        return "the channel of this run hides nothing from the server"
    if audit.subject.insecure_seed is not None:
        return "keys and noise follow from a seed, and whoever knows it can compute everything"
    return ""


def effective_epsilon(audit: Audit) -> float | None:
    """Return the one epsilon of a run; None if it has none, or if noise and masks protect nobody."""
    return None if exposed(audit) else audit.guarantee.epsilon


def headline(audit: Audit) -> str:
    """Return the one figure and its strength, such as "epsilon 8 at a delta of 1e-05: weak protection"."""
    found, epsilon = audit.guarantee, effective_epsilon(audit)
    if why := exposed(audit):
        return f"no protection: {why}"
    if epsilon is None:
        return "no epsilon: there is no mathematical limit to what can be learned about a client"
    at = f"epsilon {text_format.short(epsilon)} at a delta of {found.delta:g}"
    return f"{at}: {Strength.of(epsilon).value} protection"


def covered(audit: Audit) -> str:
    """Return what the figure covers, and what not."""
    found = audit.guarantee
    if found.epsilon is not None:
        every = f"it covers every sum that was released: those of {_purposes(found.covers)}"
        return every + (_NOT_AGAINST_ALL if exposed(audit) else "")
    if not found.unnoised:
        return found.why
    some = "some " if set(found.unnoised) & set(found.covers) else ""
    bare = f"{some}sums of {_purposes(found.unnoised)} have no noise"
    if not found.covers:
        return f"{bare}: clients are protected by being added up with others, and by nothing else"
    return (
        f"{bare}; others have, but an epsilon of some sums alone says nothing about a client that is in the "
        "others, too"
    )


def odds(audit: Audit) -> str:
    """Return what epsilon means for somebody who guesses about one client."""
    found, epsilon = audit.guarantee, effective_epsilon(audit)
    if exposed(audit):
        return "no guess is needed: the data that a client sent can be seen"
    if epsilon is None:
        return "nothing limits how sure somebody can become about a client who sees the totals"
    return (
        f"whoever guesses whether {_CASES[found.adjacency]}, and would be right in 50 % of cases, can be "
        f"right in {guess_text(epsilon)} after seeing all totals (but for a chance of {found.delta:g})"
    )


def _purposes(names: Sequence[str]) -> str:
    words = [_PURPOSES.get(name, name) for name in names]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


# --- what was learned, and by whom ---


@dataclass(frozen=True)
class Knowledge:
    """What a party could know about clients after a run, and what protects them against it."""

    key: str
    party: str
    knows: str
    protection: str


def learned(audit: Audit) -> str:
    """Return in words what the server learned."""
    if audit.subject.is_plain:
        return "every client's vectors, one by one: this channel has no protection"
    if not audit.releases:
        return "nothing: no sum was released"
    kinds = Counter(release.kind for release in audit.releases)
    reveals = {kind.kind: kind.reveals for kind in audit.kinds}
    what = (
        f"{'once' if times == 1 else f'{times:,} times'}, {reveals.get(kind, kind)}"
        for kind, times in sorted(kinds.items())
    )
    return f"{counted(len(audit.releases), 'total')}, each {_over(audit.releases)}: {'; '.join(what)}"


def _over(releases: Sequence[Release]) -> str:
    least = min(release.contributors for release in releases)
    most = max(release.contributors for release in releases)
    return f"over {least:,} clients" if least == most else f"over {least:,} to {most:,} clients"


def protected(audit: Audit) -> str:
    """Return in words who is protected against whom."""
    subject = audit.subject
    if why := exposed(audit):
        return f"nobody: {why}"
    against = (
        "a server that may also lie"
        if subject.trust == "malicious_server"
        else "a server that follows the protocol but is curious"
    )
    also = (
        f", and against {counted(subject.colluders, 'client')} that collude with it"
        if subject.colluders
        else ""
    )
    return f"each of the {counted(subject.clients, 'client')}, against {against}{also}"


def knowledge(audit: Audit) -> tuple[Knowledge, ...]:
    """Return what each party could know about one client."""
    return tuple(_knowledge(audit))


def _knowledge(audit: Audit) -> Iterator[Knowledge]:
    found = audit.guarantee
    noise = (
        "noise on every total, as strong as epsilon says"
        if found.epsilon is not None
        else "each total is over many clients, and nothing else hides one of them"
    )
    if why := exposed(audit):
        yield Knowledge("server", "the server", "all that clients sent", f"none: {why}")
    else:
        masks = "masks, so that only totals can be read"
        knows = "the totals, who took part, and who left when; no client's own vector"
        yield Knowledge("server", "the server", knows, f"{masks}; {noise}")
    yield Knowledge(
        "clients",
        "other clients",
        "the questions of the server, and so the model that follows from earlier totals",
        f"they never receive another client's message in clear; {noise}",
    )
    yield Knowledge(
        "model",
        "whoever gets the model",
        "what follows from the totals, and no more",
        noise,
    )
    yield Knowledge(
        "outsider",
        "an outsider",
        "with access to the network: who takes part and when, and how much each sends",
        "messages are encrypted on the way, if the run is on a network; the directory of a simulation holds "
        "more: see what is not private",
    )
    yield Knowledge("colluding", "clients that collude with the server", *_colluding(audit))


def _colluding(audit: Audit) -> tuple[str, str]:
    subject = audit.subject
    if exposed(audit):
        return "what the server knows", "none"
    count = subject.colluders
    if not count:
        return (
            "the total of the other clients alone, by subtracting their own vectors",
            "none was planned for: noise and thresholds count on every client keeping its own to itself",
        )
    return (
        "the total of the other clients alone, by subtracting their own vectors and noise",
        f"planned for up to {counted(count, 'client')}: the guarantee holds without their noise; with more "
        "of them, it does not",
    )


def unprotected(audit: Audit) -> tuple[str, ...]:
    """Return what the guarantee does not protect, the most important first."""
    texts = []
    found = audit.guarantee
    if not audit.sound:
        texts.append("nothing on this page is certain: records or measurements of the run do not hold")
    if found.epsilon is None and audit.releases:
        texts.append(f"what totals show about a client: {found.why}")
    texts += [
        "that a client took part, and when: the server invites clients and sees who answers",
        "facts about all clients together: these are what the model is for",
        "what the model says about people whether or not their data are in it",
    ]
    return tuple(texts)

"""The glossary: the technical terms that reports and commands use, each explained in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Term:
    """A technical term. `others` are further words for it, or its plural, which a text may use."""

    key: str  # the name of its anchor in a page
    name: str
    meaning: str
    others: tuple[str, ...] = ()


GLOSSARY: Final = (
    Term(
        "client", "client", "A participant with data of its own, such as a hospital or a phone.", ("clients",)
    ),
    Term("server", "server", "The party that asks clients for sums and computes the model from the totals."),
    Term(
        "sum",
        "sum",
        "One run of the protocol: each client sends a vector under a mask, and only the total can be read.",
        ("sums",),
    ),
    Term(
        "total", "total", "The result of a sum: all clients' vectors added up, and nothing else.", ("totals",)
    ),
    Term("vector", "vector", "A list of numbers, such as how a client would change the model.", ("vectors",)),
    Term("round", "round", "One step of the training. It takes one or more sums.", ("rounds",)),
    Term(
        "mask",
        "mask",
        "Random numbers that hide a client's vector in its message, and cancel out in the total.",
        ("masks",),
    ),
    Term(
        "noise",
        "noise",
        "Random numbers that clients add to what they send and that stay in the total. They hide whether one "
        "client's data are in it.",
    ),
    Term(
        "clip",
        "clip",
        "The largest length (norm) of a client's vector. A longer one is shortened, so that one client "
        "changes a total by a limited amount, which noise can hide.",
        ("bound",),
    ),
    Term(
        "drop-out",
        "drop-out",
        "A client that is missing from a sum, because its device or network failed.",
        ("drop-outs",),
    ),
    Term(
        "differential-privacy",
        "differential privacy",
        "A mathematical limit to what any result can show about one client, whatever else is known. Epsilon "
        "and delta say how strict it is.",
    ),
    Term(
        "epsilon",
        "epsilon",
        "How much one client's data can change the odds of anything that is seen: by a factor of at most e "
        "to the power of epsilon (2.7 for 1, about 3,000 for 8). Smaller is stronger; 0 would show nothing.",
    ),
    Term(
        "delta",
        "delta",
        "A small probability with which more may be seen than epsilon allows. It should be far below 1 "
        "divided by the number of clients.",
    ),
    Term(
        "rho",
        "rho",
        "Another measure of the same loss of privacy (zero-concentrated differential privacy). The rho of "
        "several sums is added up, and epsilon is computed from it.",
    ),
    Term(
        "zero-out",
        "zero-out",
        "What is compared: a run with the client's data, and the same run in which it sends zeros. Who takes "
        "part is not hidden.",
    ),
    Term(
        "sigma",
        "sigma",
        "The standard deviation of noise: two thirds of the time, noise is smaller than this.",
    ),
    Term(
        "collude",
        "collude",
        "Clients collude with the server if they tell it what they know, such as their own noise.",
        ("colluding", "colludes"),
    ),
    Term(
        "ledger",
        "ledger",
        "A list of all sums that nobody can change unnoticed. The server signs its own.",
    ),
    Term(
        "canary",
        "canary",
        "A made-up client with a known vector, with which a run's noise is tested.",
        ("canaries",),
    ),
)

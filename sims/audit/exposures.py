"""Lists what a run did not keep private about its clients, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from protocols.algorithm import LEAST_WEIGHT
from protocols.order_statistics import Below
from sims.audit.audit_result import Exposure, Release, SumKind
from sims.audit.run_files import Evidence, Row
from sims.records.run_directory import SERVED
from sims.text_format import EXACT_TOTAL, counted


def exposures(
    evidence: Evidence, kinds: Sequence[SumKind], described: Mapping[str, Row], found: Sequence[Release]
) -> tuple[Exposure, ...]:
    """Return an `Exposure` for everything about clients that the run did not keep private. `described` maps
    each kind of sum to its row in `run.json`, and `found` has the released sums."""
    released = {release.kind for release in found}
    own = [kind for kind in kinds if kind.kind in released]
    return (
        *_whole_run(evidence),
        *(each for kind in own for each in _of_kind(kind, described.get(kind.kind, {}), evidence)),
        *_of_epsilon(found),
        *_always(evidence, own),
    )


def _whole_run(evidence: Evidence) -> Iterator[Exposure]:
    if evidence.is_plain:
        yield Exposure(
            what="every client's vectors",
            why="over a plain channel, everything was visible to the simulation: bounds and noise are as in "
            "a secure one, but nothing was hidden",
        )
    if evidence.run.get("insecure_seed") is not None:
        yield Exposure(
            what="keys, rounding and noise",
            why="they follow from insecure_seed, which is in run.json: anyone with it can compute them all",
        )


def _of_kind(kind: SumKind, row: Row, evidence: Evidence) -> Iterator[Exposure]:
    bare = [part.name for part in kind.parts if not part.noisy]
    if len(bare) == len(kind.parts):
        yield Exposure(what=kind.reveals, why=f"it has no noise: {EXACT_TOTAL}", kind=kind.kind)
    elif bare:
        yield Exposure(
            what=f"of {kind.reveals}: {' and '.join(bare)}",
            why=f"other parts have noise, but of these the total is exact, so the sum as a whole is not "
            f"private: {EXACT_TOTAL}",
            kind=kind.kind,
        )
    if kind.kind == Below.kind:
        yield Exposure(
            what="in every coordinate, some client's value",
            why="an exact median, or the edge of a trimmed mean, is one client's own coordinate, though "
            "nothing says whose",
            kind=kind.kind,
        )
    if bare and float(row.get("least_weight", 1.0)) < LEAST_WEIGHT:
        yield Exposure(
            what="the input of a client that a malicious server singles out",
            why="a value that the server chooses decides the weight of a client, so the server could give "
            f"all clients but one the weight zero; this run assumed {evidence.run['trust']}",
            kind=kind.kind,
        )


def _of_epsilon(found: Sequence[Release]) -> Iterator[Exposure]:
    bare = sum(release.rho is None for release in found)
    if 0 < bare < len(found):
        yield Exposure(
            what=f"{counted(bare, 'sum')} of {len(found):,} that no epsilon covers",
            why=f"the {counted(len(found) - bare, 'sum')} with noise are over the same clients, so the run "
            "has no epsilon",
        )


def _always(evidence: Evidence, own: Sequence[SumKind]) -> Iterator[Exposure]:
    if own:
        yield Exposure(
            what="how many clients are in every total",
            why="every total states its number of clients, without noise",
        )
        yield Exposure(
            what="who took part, and who left when",
            why="the server invites clients and collects what they send, so it knows who they are; so may "
            "an observer of the traffic",
        )
        yield Exposure(
            what="whether a total is what honest clients meant",
            why="residues cannot be checked: a client that lies inside a sum moves its total anywhere, "
            "whatever the algorithm is robust against",
        )
    if evidence.metrics and evidence.run["channel"] != SERVED:
        yield Exposure(
            what="how every single client does, in this directory",
            why="metrics and clients.json are measured by an observer who sees all clients, and the "
            "checkpoint holds clients' states: only a simulation has such a view",
        )

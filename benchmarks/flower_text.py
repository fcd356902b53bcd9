"""The text about Flower on the page of benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.flower import FlowerCosts
from benchmarks.markdown import milliseconds, paragraphs, prose, significant, table
from benchmarks.page_measurements import Survey
from benchmarks.peers import Row

HEADING: Final = "## Beside Flower's SecAgg+"

MEANING: Final = """
**What the ratios mean, and what they do not.** The two do the same job: the same cohort, neighbours,
threshold and drop-outs, vectors of the same length, a ring of 32 bits. They do not do the same work. Our
figures include X25519 and HKDF for every mask between two clients, Shamir's shares in a field above 2^256,
and the verification of every secret that the server reconstructs; every mask is AES-128-CTR under a key of
its own. Flower's masks come from the Mersenne Twister MT19937, which is no cryptographic generator, on seeds
folded to 32 bits, of which 28 vary between two clients, so that they can be found by trying; its server
interpolates in pure Python over every share it got, and verifies nothing that it reconstructs. So the ratio
of unmasking says what our arithmetic saves on short vectors, and how the two generators compare on long ones.
It does not say how long a round of training takes: neither training nor the network is in it, and Flower's
protobuf is not counted against it. A client of Flower opens its neighbours' shares in the stage in which it
masks, and one of ours when they arrive, in its set-up: *all stages* has both."""

_SAME: Final = (0.8, 1.25)  # ratios between which two single runs tell no difference


def flower_section(found: Survey) -> str:
    if not found.rows:
        return paragraphs(HEADING, f"Not measured in this run. {found.absent}.")
    return paragraphs(HEADING, _setting(found), _table(found), *_remarks(found), prose(MEANING))


def _setting(found: Survey) -> str:
    row = found.rows[0]
    return prose(f"""
        flwr {row.flower.version}, its own code of client and server without its network, in the same run as
        ours and in turns with it: {row.ours.clients} clients, {row.ours.dropped} of whom vanish,
        {row.ours.neighbours} neighbours, threshold {row.ours.threshold}. CPU milliseconds, and bytes; a ratio
        is Flower's figure over ours. Flower's masking starts from floats, so ours includes encoding.""")


def _table(found: Survey) -> str:
    head = (
        "d", "client mask: ours", "Flower", "ratio", "all stages: ratio",
        "server unmask: ours", "Flower", "ratio", "all stages: ratio",
        "bytes up: ours", "Flower", "ratio",
    )  # fmt: skip
    return table(head, map(_cells, found.rows), texts=0)


def _cells(row: Row) -> list[str]:
    ours, flower = row.ours, row.flower
    return [
        f"{ours.dim:,}",
        milliseconds(row.client_mask_cpu_s),
        milliseconds(flower.client_mask_cpu_s),
        significant(row.client_mask_ratio),
        significant(row.client_ratio),
        milliseconds(ours.server_unmask_cpu_s),
        milliseconds(flower.server_unmask_cpu_s),
        significant(row.server_unmask_ratio),
        significant(row.server_ratio),
        f"{ours.bytes_up:,}",
        f"{flower.bytes_up:,}",
        significant(row.bytes_ratio),
    ]


def _remarks(found: Survey) -> Iterator[str]:
    yield _totals(found)
    row = found.beside_flower(found.plan.peer_dim)
    if row is not None and found.majority is not None:
        yield _threshold(row, found.majority)
    if found.absent:
        yield prose(f"Flower went no further: {found.absent}.")


def _totals(found: Survey) -> str:
    exact = all(row.ours.exact for row in found.rows)
    right = all(row.flower.right for row in found.rows)
    return prose(f"""
        Our totals {"equal" if exact else "**differ from**"} the plain sums of what the clients encoded, and
        Flower's means are {"within" if right else "**not within**"} their rounding of the plain means.""")


def _threshold(row: Row, majority: FlowerCosts) -> str:
    """Say whether the threshold of our session makes Flower slow."""
    usual, asked = majority.server_unmask_cpu_s, row.flower.server_unmask_cpu_s
    low, high = _SAME
    judgement = "as fast" if low < usual / asked < high else "faster" if usual < asked else "slower"
    return prose(f"""
        Flower gets the threshold of our session, {row.ours.threshold}. With {row.majority}, the majority
        that is usual there, its server is {judgement} at d = {row.ours.dim:,}: {milliseconds(usual)} instead
        of {milliseconds(asked)} ms of unmasking, for it interpolates over every share in either case. Its
        clients set up in {milliseconds(majority.client_setup_cpu_s)} instead of
        {milliseconds(row.flower.client_setup_cpu_s)} ms.""")

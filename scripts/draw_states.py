"""Redraw the state diagrams in docs/protocol.md from the tables in secagg/transitions.py.

    python scripts/draw_states.py           rewrite the diagrams
    python scripts/draw_states.py --check   only say whether they are current

A diagram stands between `<!-- states: NAME -->` and `<!-- end states -->`. What is between the markers
belongs to this script; the rest of the page does not.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from secagg import messages as m
from secagg.transitions import CLIENT_MOVES, COLLECTED, ClientState, ServerState
from secagg.trust_levels import Trust

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "protocol.md"

Arrow: TypeAlias = tuple[str, str, str]  # from, to, what causes it

# Moves that no message from the server causes, so the tables do not list them.
OWN_MOVES: Final[Sequence[Arrow]] = (
    (ClientState.ASKED.value, ClientState.MASKED.value, "answer()"),
    (ClientState.ASKED.value, ClientState.READY.value, "decline()"),
)
_SET_UP: Final = (m.Advertisement, m.Shares, m.Deposit)
_BLOCK: Final = re.compile(r"(<!-- states: (?P<name>\S+) -->\n).*?(<!-- end states -->)", re.DOTALL)


def client_arrows(trust: Trust) -> Iterator[Arrow]:
    for (before, message), after in CLIENT_MOVES[trust].items():
        yield before.value, after.value, message.__name__
    yield from OWN_MOVES


def server_arrows(trust: Trust) -> Iterator[Arrow]:
    """Set-up stages in their order, then the stages of a sum, from and to `ready`. Only with hybrid keys does
    set-up have a stage of deposits."""
    skipped = () if trust is Trust.MALICIOUS else (m.Confirmation,)
    stages = {stage.value: kind for stage, kind in COLLECTED.items() if kind not in skipped}
    ready = ServerState.READY.value
    set_up = [stage for stage, kind in stages.items() if kind in _SET_UP]
    one_sum = [stage for stage, kind in stages.items() if kind not in _SET_UP]
    for stage, after in zip(set_up, [*set_up[1:], ready], strict=True):
        closed = f"close, {stages[stage].__name__} collected"
        if after == ServerState.DEPOSITING.value:
            yield stage, ready, f"{closed}, X25519 alone"
            closed += ", hybrid keys"
        yield stage, after, closed
        yield stage, ServerState.FAILED.value, "close, too few"
    yield ready, one_sum[0], "ask()"
    for stage, after in zip(one_sum, [*one_sum[1:], ready], strict=True):
        yield stage, after, f"close, {stages[stage].__name__} collected"
        yield stage, ready, "GroupClosed"
    for stage in (*set_up, ready, *one_sum):
        yield stage, ServerState.ENDED.value, "end()"


def mermaid(start: str, arrows: Iterable[Arrow]) -> str:
    """The diagram; arrows between the same two states share one line."""
    labels: dict[tuple[str, str], list[str]] = {}
    for before, after, cause in arrows:
        labels.setdefault((before, after), []).append(cause)
    rows = [f"    {before} --> {after}: {' / '.join(causes)}" for (before, after), causes in labels.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {start}", *rows, "```", ""])


def diagrams() -> Mapping[str, str]:
    """Every diagram by the name in its marker."""
    clients = {f"client-{t}": mermaid(ClientState.NEW.value, client_arrows(t)) for t in Trust}
    servers = {f"server-{t}": mermaid(ServerState.INVITING.value, server_arrows(t)) for t in Trust}
    return {**clients, **servers}


def redraw(page: str) -> str:
    """`page` with all its diagrams drawn anew; raises where a diagram is missing or unknown."""
    drawn = diagrams()
    names = [match["name"] for match in _BLOCK.finditer(page)]
    if sorted(names) != sorted(drawn):
        raise ValueError(f"the page has the diagrams {sorted(names)}, not {sorted(drawn)}")
    return _BLOCK.sub(lambda match: match[1] + drawn[match["name"]] + match[3], page)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Redraw the state diagrams in docs/protocol.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if they are stale")
    check = parser.parse_args(argv).check
    page = PAGE.read_text(encoding="utf-8")
    fresh = redraw(page)
    if check and fresh != page:
        print("docs/protocol.md is stale: run python scripts/draw_states.py")
        return 1
    if fresh != page:
        PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

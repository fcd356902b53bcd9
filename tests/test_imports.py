"""Which package may import what.

The protocols must run the same on a network, in a simulation and in a test, so they have no
sockets, clocks, threads or randomness of their own, and nothing imports against the direction
sims -> protocols -> secagg. The check reads the sources instead of importing them, so it also
sees imports inside functions.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("secagg", "protocols", "fl", "sims")

STDLIB = frozenset(sys.stdlib_module_names)
DENIED = frozenset(
    {
        "asyncio",
        "concurrent",
        "multiprocessing",
        "pickle",
        "random",
        "select",
        "selectors",
        "socket",
        "ssl",
        "subprocess",
        "threading",
        "time",
    }
)
PURE = STDLIB - DENIED


@dataclass(frozen=True)
class Rule:
    """What the modules of one folder may import, as names of top-level modules."""

    allowed: frozenset[str]
    denied: tuple[str, ...] = ()  # modules below an allowed one
    modules: tuple[str, ...] = ()  # single modules that are allowed as well

    def forbids(self, module: str) -> bool:
        if any(f"{module}.".startswith(f"{denied}.") for denied in self.denied):
            return True
        if any(f"{module}.".startswith(f"{single}.") for single in self.modules):
            return False
        return module.partition(".")[0] not in self.allowed


CORE = PURE | {"secagg", "numpy", "cryptography", "msgpack"}
NET_AND_POOL = ("secagg.net", "secagg.mask_pool", "secagg.mask_pool_worker")
# The longest path that matches counts. A folder not listed here (sims) may import anything.
RULES = {
    "secagg": Rule(CORE, denied=NET_AND_POOL),
    # The entry point of the command, which is nothing but a door to sims.
    "secagg/__main__.py": Rule(PURE | {"sims"}),
    "secagg/mask_pool.py": Rule(CORE | {"multiprocessing", "threading", "time"}, denied=("secagg.net",)),
    "secagg/mask_pool_worker.py": Rule(
        CORE | {"multiprocessing", "time"}, denied=("secagg.net", "secagg.mask_pool")
    ),
    "secagg/ledger/file.py": Rule(CORE | {"threading"}, denied=NET_AND_POOL),
    "secagg/noise/rho_and_epsilon.py": Rule(CORE | {"dp_accounting"}, denied=NET_AND_POOL),
    "secagg/net/event_loop_thread.py": Rule(CORE | {"concurrent", "threading", "trio"}),
    "secagg/net": Rule(CORE | {"trio", "socket", "ssl", "time"}),
    "protocols": Rule(PURE | {"protocols", "secagg", "numpy", "msgpack"}),
    "protocols/learner.py": Rule(PURE | {"numpy"}),
    "fl": Rule(STDLIB | {"fl", "numpy", "torch"}, modules=("protocols.learner",)),
}


def rule_for(path: str) -> Rule | None:
    matches = [place for place in RULES if f"{path}/".startswith(f"{place}/")]
    return RULES[max(matches, key=len)] if matches else None


def imported(source: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute name of everything that ``source`` imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from a import b` may import the module a.b, so the name includes b.
            base = absolute(node, path)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def absolute(node: ast.ImportFrom, path: str) -> str:
    # One dot is the folder of the file, and each further dot the folder above.
    folders = list(Path(path).parts[: -node.level]) if node.level else []
    return ".".join(folders + ([node.module] if node.module else []))


def violations(source: str, path: str) -> list[str]:
    """Return the forbidden imports of ``source``, as ``path:line: name``."""
    rule = rule_for(path)
    if rule is None:
        return []
    return [f"{path}:{line}: {name}" for line, name in imported(source, path) if rule.forbids(name)]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_it_may(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths, "nothing was checked"

    found = [
        violation
        for path in paths
        for violation in violations(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]

    assert found == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        *(("secagg/mask_keystream.py", f"import {module}") for module in sorted(DENIED)),
        *(("protocols/mean.py", f"import {module}") for module in sorted(DENIED)),
        ("secagg/mask_keystream.py", "import torch"),
        ("secagg/noise/zcdp_cost.py", "import dp_accounting"),
        ("secagg/noise/rho_and_epsilon.py", "import scipy"),
        ("secagg/noise/rho_and_epsilon.py", "import secagg.net"),
        ("secagg/mask_keystream.py", "import trio"),
        ("secagg/mask_keystream.py", "import concurrent.futures"),
        ("secagg/mask_keystream.py", "from time import monotonic"),
        ("secagg/mask_keystream.py", "def f():\n    import time"),
        ("secagg/mask_keystream.py", "import os, time"),
        ("secagg/mask_keystream.py", "import protocols.mean"),
        ("secagg/mask_keystream.py", "from secagg.net import server"),
        ("secagg/sum_unmasking.py", "from secagg.mask_pool import ProcessPool"),
        ("secagg/mask_pool.py", "from secagg.net import server"),
        ("secagg/mask_pool.py", "import socket"),
        ("secagg/sum_unmasking.py", "from secagg.mask_pool_worker import claims"),
        ("secagg/mask_pool_worker.py", "from secagg.mask_pool import ProcessPool"),
        ("secagg/mask_pool_worker.py", "import socket"),
        ("secagg/mask_keystream.py", "from secagg import net"),
        ("secagg/mask_keystream.py", "from . import net"),
        ("secagg/testing/run.py", "from ..net import server"),
        ("secagg/network.py", "import trio"),
        ("secagg/net/server.py", "import random"),
        ("secagg/net/server.py", "import sims"),
        ("protocols/mean.py", "import cryptography"),
        ("protocols/mean.py", "import sims"),
        ("protocols/mean.py", "from fl import train"),
        ("fl/train.py", "import secagg"),
        ("fl/train.py", "import protocols"),
        ("fl/train.py", "import protocols.run"),
        ("protocols/learner.py", "import secagg"),
        ("fl/train.py", "import sims"),
    ],
)
def test_forbidden_import_is_caught(path: str, line: str) -> None:
    assert violations(f"import math\n{line}\n", path) != []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("secagg/client_memory.py", "import fcntl, os"),
        ("secagg/mask_keystream.py", "import secrets\nimport numpy as np\nimport msgpack"),
        ("secagg/mask_keystream.py", "from cryptography.hazmat.primitives import hashes"),
        ("secagg/mask_keystream.py", "from . import errors\nfrom .errors import PeerError"),
        ("secagg/mask_keystream.py", "from secagg import network"),
        ("secagg/noise/rho_and_epsilon.py", "import dp_accounting"),
        ("secagg/net/server.py", "import ssl\nimport trio\nfrom ..errors import PeerError"),
        ("protocols/mean.py", "import numpy\nfrom secagg.sum_spec import Spec\nfrom . import sums"),
        ("fl/train.py", "import random\nimport torch"),
        ("fl/train.py", "from protocols.learner import Steering"),
        ("sims/run.py", "import fl, protocols, secagg, threading, time, rich"),
    ],
)
def test_permitted_import_is_not_caught(path: str, line: str) -> None:
    assert violations(line, path) == []


# --- layers and cycles ---

# The folders of sims, from the top down. A folder imports folders of lower rows only.
SIMS_LAYERS = (
    ("cli",),
    ("engines",),
    ("demo", "drill", "deploy", "sweep"),
    ("report",),
    ("audit", "simulation"),
    ("runtime",),
    ("coordination",),
    ("scenario",),
    ("plan", "workers", "records", "noise_audit", "imported_object"),
    ("config_problems", "console_progress", "glossary", "text_format", "process_resources"),
)


def folder(module: str) -> str:
    """The first two parts of a module's name."""
    return ".".join(module.split(".")[:2])


def folder_imports(package: str) -> dict[str, set[str]]:
    """Which folders of the repository each folder of ``package`` imports."""
    graph: dict[str, set[str]] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        place = path.relative_to(ROOT)
        own = folder(".".join(place.with_suffix("").parts))
        names = (name for _, name in imported(path.read_text(encoding="utf-8"), place.as_posix()))
        graph.setdefault(own, set()).update(each for each in map(folder, names) if is_module(each))
        graph[own].discard(own)
    return graph


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return name.partition(".")[0] in PACKAGES and (path.is_dir() or path.with_suffix(".py").is_file())


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for each in graph.get(waiting.pop(), set()) - found:
            found.add(each)
            waiting.append(each)
    return found


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of folders that import each other, directly or not."""
    within = {name: reachable(graph, name) for name in graph}
    return {
        frozenset(other for other in found if name in within.get(other, ()))
        for name, found in within.items()
        if name in found
    }


def test_folders_of_sims_import_lower_layers_only() -> None:
    rank = {f"sims.{name}": row for row, names in enumerate(SIMS_LAYERS) for name in names}
    graph = folder_imports("sims")
    graph.pop("sims.__init__")

    assert graph.keys() == rank.keys()
    wrong = {
        (name, other)
        for name, others in graph.items()
        for other in others
        if other.startswith("sims.") and rank[other] <= rank[name]
    }
    assert wrong == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folders_import_each_other(package: str) -> None:
    assert cycles(folder_imports(package)) == set()


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert cycles(graph) == {frozenset("abc")}
    assert cycles({"a": {"b"}, "b": set()}) == set()

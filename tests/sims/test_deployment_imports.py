"""What a deployment can import: none of what a simulation does to its clients, not even indirectly."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import ROOT, imported, is_module

# Simulated clients, drop-out laws, tampering, observers, and randomness that is not secret.
FORBIDDEN = ("sims.runtime", "sims.simulation", "secagg.testing", "secagg.insecure_seeds")

COMMANDS = ("sims.cli.serve", "sims.cli.join")
DEPLOYMENT = [
    *(f"sims.deploy.{path.stem}" for path in sorted((ROOT / "sims/deploy").glob("[a-z]*.py"))),
    *(f"sims.coordination.{path.stem}" for path in sorted((ROOT / "sims/coordination").glob("[a-z]*.py"))),
    *COMMANDS,
]


class WithoutFunctions(ast.NodeTransformer):
    """Removes functions, so that only imports are left that run when the module is imported."""

    def visit_FunctionDef(self, _node: ast.FunctionDef) -> None:
        return None


def source_of(module: str) -> Path:
    folder = ROOT.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


@cache
def imports_of(module: str) -> set[str]:
    """The modules that ``module`` imports, also within functions. Each command of the CLI imports what it
    needs when it runs, so only the functions of `serve` and `join` count there."""
    path = source_of(module)
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    if module.startswith("sims.cli") and module not in COMMANDS:
        source = ast.unparse(WithoutFunctions().visit(ast.parse(source)))
    names = (name for _, name in imported(source, path.relative_to(ROOT).as_posix()))
    return {part for name in names for part in with_parents(name)}


def with_parents(name: str) -> set[str]:
    """The modules that are loaded when ``name`` is imported: itself, if it is one, and all packages above."""
    parts = name.split(".")
    prefixes = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return {each for each in prefixes if is_module(each)}


def closure(start: str) -> dict[str, str]:
    """All modules that ``start`` imports, directly or not, each with one that imports it."""
    found = dict.fromkeys(with_parents(start), "")
    waiting = list(found)
    while waiting:
        module = waiting.pop()
        for each in imports_of(module) - found.keys():
            found[each] = module
            waiting.append(each)
    return found


def forbidden(found: dict[str, str]) -> dict[str, str]:
    """Those of the modules ``found`` that no deployment may import."""
    prefixes = tuple(f"{each}." for each in FORBIDDEN)
    return {module: by for module, by in found.items() if f"{module}.".startswith(prefixes)}


@pytest.mark.parametrize("module", DEPLOYMENT)
def test_a_deployment_reaches_nothing_of_the_simulation(module: str) -> None:
    found = closure(module)

    assert len(found) > 1, "nothing was followed"
    assert forbidden(found) == {}


@pytest.mark.parametrize(
    ("module", "reached"),
    [
        ("sims.simulation.simulate", "sims.runtime.residue_tampering"),
        ("sims.simulation.simulate", "sims.simulation.metric_observers"),
        ("sims.sweep.cell_tasks", "sims.runtime.sum_and_dropout_settings"),  # by an import in a function
        ("sims.runtime.client_state", "secagg.insecure_seeds"),  # by its package
    ],
)
def test_a_simulation_is_caught(module: str, reached: str) -> None:
    assert reached in forbidden(closure(module))


def test_a_coordinator_imports_no_side_of_a_client() -> None:
    found = closure("sims.coordination.coordinator")

    assert not found.keys() & {"protocols.participant", "sims.coordination.client_runtime"}
    assert "protocols.participant" in closure("sims.coordination.client_runtime")

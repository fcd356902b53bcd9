"""A deployment that trains a model of the user's own, for tests that make an operator's mistakes in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.sims.own_code import MODULE, write_module
from tests.sims.training_site import JOIN, SCENARIO, TrainingSite

DATA = '[data]\nkind = "digits"\n\n[partition]\nkind = "iid"\nclients = {clients}\n'
OWN_DATA = """

def own():
    return dataset(1), dataset(2)


def nobody():
    return dataset(1, samples=0)


def unknown_numbers():
    x, y = dataset(1).tensors
    return TensorDataset(x * float("nan"), y)


def nobodies():
    return {each: nobody() for each in range(3)}


def unknown_by_client():
    return {each: unknown_numbers() for each in range(3)}


class SmallLearner:
    samples, rate, steps = 40, 0.1, 2
    train = gradient = score = None

    def loss(self, model):
        return float(np.dot(model, np.zeros(7)))
"""


class MistakenSite(TrainingSite):
    """The server has no data. The clients load theirs with a function of their own."""

    def __init__(self, directory: Path, **more: Any) -> None:
        self.module = write_module(directory, MODULE + OWN_DATA)
        text = SCENARIO.replace(DATA, "").replace('"softmax"', f'"{self.module}:Net"\nhidden = 4')
        self.scenario_text = text.replace("[deploy]\n", "[deploy]\nclients = {clients}\n")
        self.join_text = JOIN.replace("share = {member}", f'data = "{self.module}:own"')
        super().__init__(directory, **more)

    def copied(self, directory: Path) -> MistakenSite:
        """The same site in another directory."""
        shutil.copytree(self.directory, directory, dirs_exist_ok=True)
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, directory=directory, identities=dict(self.identities))
        return copy

    def files(self) -> dict[Path, bytes]:
        found = [path for path in sorted(self.directory.rglob("*")) if path.is_file()]
        own = [path for path in found if path.parent.name != "__pycache__"]  # of Python
        return {path.relative_to(self.directory): path.read_bytes() for path in own}

    def correct(self, original: MistakenSite) -> None:
        """Put everything back as it is in `original`."""
        shutil.rmtree(self.directory)
        shutil.copytree(original.directory, self.directory)

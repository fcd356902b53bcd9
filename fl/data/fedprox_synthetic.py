"""The data synthetic(alpha, beta): alpha says how much clients' models differ, beta how much inputs differ.

This is the generator of "Federated optimization in heterogeneous networks" (FedProx). Several papers adopted
it with changes, which are in `PRESETS`. For client k, with N(mean, standard deviation) in every coordinate:

    W_k and b_k ~ N(u_k, 1) with one number u_k ~ N(0, alpha),  v_k ~ N(B_k, 1) with one B_k ~ N(0, beta),
    x_j ~ N(v_kj, j^-0.6) for input feature j = 1, 2, ...,  label y = argmax(x W_k + b_k).

The papers call alpha and beta variances; every released generator uses them as standard deviations.

Numbers are drawn in the order of the released scripts, which use the global generators of numpy (for the
data) and of the standard library (for the order of samples). With `np.random.seed(seed)` and
`random.seed(seed)`, those scripts make the same samples. Of the scripts, only pFedMe's sets a seed, 0.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.random import RandomState

from fl.checks import checked_seed, counted, not_negative
from fl.data.synthetic_train_test_split import TENTH, SplitFractions, divided
from fl.errors import DataError
from fl.federation import Federation
from fl.samples import Array, Samples


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Parameters of the data synthetic(alpha, beta). A client's size is its number of samples.

    `alpha`, `beta`  standard deviations between clients, of models and of inputs.
    `alike`          number of clients, the first ones, that share a model (entries N(0, 1)) and have inputs
                     around zero.
    `draws`          which unused random numbers are drawn, to get the same data as a script: `all` draws a
                     model even for clients that are alike; `models` omits these models; `needed` also omits
                     the means of each client's model and inputs.
    `mean`, `sigma`  mean and standard deviation of the logarithm of a client's size, which is rounded down.
    `minimum`        number that is added to the size.
    `times`          factor by which the size is then multiplied.
    `equal`          whether one size is drawn for all clients.
    `largest`        limit on a client's size, because the distribution has a heavy tail. None for no limit.
    `softmax`        whether labels are the argmax of probabilities in double precision, as in the scripts.
                     They differ from the argmax of logits only if exponentials overflow or all vanish: then
                     probabilities are NaN, and the label is the first NaN class. With the preset `fed+`,
                     nearly all labels would be 0.
    `shares`         fractions of a client's samples for testing and for validation.
    """

    name: str = "synthetic"
    clients: int = 30
    alpha: float = 1.0
    beta: float = 1.0
    alike: int = 0
    draws: Literal["all", "models", "needed"] = "all"
    features: int = 60
    classes: int = 10
    mean: float = 4.0
    sigma: float = 2.0
    minimum: int = 50
    times: int = 1
    equal: bool = False
    largest: int | None = None
    softmax: bool = False
    shares: SplitFractions = TENTH

    def __post_init__(self) -> None:
        for name, least in (("clients", 1), ("features", 1), ("classes", 2), ("minimum", 1), ("times", 1)):
            counted(name, getattr(self, name), least)
        counted("alike", self.alike, 0)
        if self.alike > self.clients:
            raise DataError(f"{self.alike} of {self.clients} clients cannot be alike: lower `alike`")
        if self.largest is not None:
            counted("largest", self.largest, 1)
        for name in ("alpha", "beta", "sigma"):
            not_negative(name, getattr(self, name))
        if not abs(self.mean) <= 20:  # e^20 samples are too many.
            raise DataError(
                f"mean must be between -20 and 20, as it is a logarithm, not {self.mean!r}", parameter="mean"
            )
        if self.draws not in ("all", "models", "needed"):
            raise DataError(f"draws must be all, models or needed, not {self.draws!r}", parameter="draws")
        if self.draws == "needed" and self.alike < self.clients:
            raise DataError("`needed` requires that all clients are alike: set draws to models")


_PFEDME: Final = Recipe(name="pFedMe", clients=100, alpha=0.5, beta=0.5, times=5)
_LP_PROJ: Final = Recipe(
    name="lp-proj", clients=100, alpha=0.0, beta=0.0, minimum=100, equal=True, shares=SplitFractions(0.2, 0.2)
)
_IID: Final = Recipe(name="FedProx IID", alpha=0.0, beta=0.0, alike=30, draws="needed")

# By paper, with the alpha and beta for which it shows most results.
PRESETS: Final[Mapping[str, Recipe]] = {
    "fedprox": Recipe(name="FedProx"),
    "fedprox-iid": _IID,
    "q-ffl": Recipe(name="q-FFL", clients=100),
    "q-ffl-hybrid": Recipe(name="q-FFL hybrid", clients=100, alike=50, sigma=1.0),
    "pfedme": _PFEDME,
    "lp-proj": _LP_PROJ,
    "lp-proj-unbalanced": replace(_LP_PROJ, name="lp-proj unbalanced", equal=False),
    "lp-proj-iid": replace(_LP_PROJ, name="lp-proj IID", alike=100, draws="models"),
    "fedbc": Recipe(name="FedBC", alpha=0.5, beta=0.5, shares=SplitFractions(0.2)),
    "fed+": Recipe(name="Fed+", alpha=1000.0, beta=10.0, shares=SplitFractions(0.2)),
}


def synthetic(preset: str = "fedprox", *, seed: int, **changes: Any) -> Federation:
    """Return the synthetic data of a paper. `preset` is a key of `PRESETS`, and `changes` replace fields of
    its `Recipe`; unknown ones of either raise `DataError`. If the preset has clients that share a model
    (`alike` is their number), change `alike` together with `clients`."""
    if preset not in PRESETS:
        raise DataError(f"there is no preset {preset!r}: use one of {', '.join(PRESETS)}")
    try:
        recipe = replace(PRESETS[preset], **changes)
    except TypeError as error:
        known = ", ".join(Recipe.__dataclass_fields__)
        raise DataError(f"unknown name among {', '.join(changes)}: the names are {known}") from error
    return generate(recipe, seed=seed)


def generate(recipe: Recipe, *, seed: int) -> Federation:
    """Return the synthetic data that `recipe` describes. Inputs are in single precision; labels are computed
    in double precision, before inputs are rounded."""
    rng = RandomState(checked_seed(seed))
    order = random.Random(seed)
    clients = _clients(recipe, rng)
    return Federation(
        {client: divided(samples, recipe.shares, order) for client, samples in enumerate(clients)},
        classes=recipe.classes,
        name=recipe.name,
    )


def variances(features: int) -> Array:
    """Return the variance j^-1.2 of every input feature j = 1, ..., `features`."""
    return np.array([np.power(j + 1, -1.2) for j in range(features)])


def _clients(recipe: Recipe, rng: RandomState) -> list[Samples]:
    """Return the samples of each client. Random numbers are drawn in the order of the papers' scripts."""
    sizes = _sizes(recipe, rng)
    needed = recipe.draws != "needed"
    model_means = rng.normal(0, recipe.alpha, recipe.clients) if needed else np.zeros(recipe.clients)
    input_means = rng.normal(0, recipe.beta, recipe.clients) if needed else np.zeros(recipe.clients)
    centers = [
        np.zeros(recipe.features) if client < recipe.alike else rng.normal(mean, 1, recipe.features)
        for client, mean in enumerate(input_means)
    ]
    common = _model(recipe, 0.0, rng) if recipe.alike else None
    covariance = np.diag(variances(recipe.features))
    clients = []
    for client, size in enumerate(sizes):
        alike = client < recipe.alike
        own = None if alike and recipe.draws != "all" else _model(recipe, model_means[client], rng)
        model = common if alike else own
        assert model is not None
        weights, bias = model
        inputs = rng.multivariate_normal(centers[client], covariance, size)
        labels = _labels(inputs @ weights + bias, softmax=recipe.softmax)
        clients.append(Samples(inputs.astype(np.float32), labels))
    return clients


def _sizes(recipe: Recipe, rng: RandomState) -> Array:
    drawn = rng.lognormal(recipe.mean, recipe.sigma, 1 if recipe.equal else recipe.clients).astype(int)
    sizes = (drawn + recipe.minimum) * recipe.times
    return np.broadcast_to(np.minimum(sizes, recipe.largest or sizes.max()), recipe.clients)


def _model(recipe: Recipe, mean: float, rng: RandomState) -> tuple[Array, Array]:
    weights = rng.normal(mean, 1, (recipe.features, recipe.classes))
    return weights, rng.normal(mean, 1, recipe.classes)


def _labels(logits: Array, *, softmax: bool) -> Array:
    if softmax:
        # The scripts also compute infinity over infinity and zero over zero.
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            logits = np.exp(logits)
            logits /= logits.sum(axis=1, keepdims=True)
    labels: Array = logits.argmax(axis=1)
    return labels

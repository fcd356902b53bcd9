"""The synthetic regression of "Robustness and personalization in federated learning" (the Fed+ paper).

Party (client) k has true weights w_k, inputs x and targets y. With normal distributions N(mean, variance):

    w_k = c + Laplace noise of scale 0.5 in every coordinate, where
    c ~ N(0, 5) is the same for all parties but the last, which has its own c ~ N(0, 50);
    m_k ~ N(0, 0.5),  x ~ N(m_k, S),  y = w_k x + N(0, 2).

The paper leaves three points open. They are interpreted as follows.

* The variances S_jj = mod(j, 50)^-1.1 are infinite for every fiftieth j. The remainder is taken from 1 to 50.
* The coordinates of m_k are drawn separately, like the means of the paper's other data set.
* The second argument of N is a variance, as the covariance 5 I says. With standard deviations, predicting 0
  would have a mean squared error of about 90 000, which 50 samples for 1000 weights could not reduce to the
  1 048 to 4 268 of the paper's Table 2. With variances, it is about 6 000.

No code was released, so the order of random draws is our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.random import Generator

from fl.checks import counted, not_negative
from fl.errors import DataError
from fl.federation import ClientData, Federation
from fl.samples import Array, Samples


@dataclass(frozen=True, kw_only=True)
class RegressionRecipe:
    """Parameters of the Fed+ paper's synthetic regression, by default the paper's. Each of `parties` clients
    has `samples` samples and tests on the fraction `test` of them. Its true weights are a center plus Laplace
    noise of scale `laplace`; the last `outliers` parties share another center than the others. Variances:
    `center` and `outlying_center` of these centers, `input_mean` of parties' mean inputs, `noise` in targets,
    and of inputs r^-`decay`, where r cycles through 1, ..., `period`. Invalid values raise `DataError`."""

    parties: int = 10
    outliers: int = 1
    features: int = 1000
    samples: int = 100
    test: float = 0.5
    center: float = 5.0
    outlying_center: float = 50.0
    laplace: float = 0.5  # scale of the noise between parties' weights
    input_mean: float = 0.5
    noise: float = 2.0
    period: int = 50
    decay: float = 1.1

    def __post_init__(self) -> None:
        for name, least in (("parties", 1), ("outliers", 0), ("features", 1), ("samples", 1), ("period", 1)):
            counted(name, getattr(self, name), least)
        for name in ("center", "outlying_center", "laplace", "input_mean", "noise", "decay"):
            not_negative(name, getattr(self, name))
        if self.outliers > self.parties:
            raise DataError(f"{self.outliers} outliers among {self.parties} parties: lower `outliers`")
        if not 0 <= self.test < 1 or not self.training:
            raise DataError(f"with a test share of {self.test!r}, no training samples are left: lower `test`")

    @property
    def training(self) -> int:
        """The number of training samples of a party."""
        return self.samples - round(self.test * self.samples)


def fed_plus_regression(rng: Generator, recipe: RegressionRecipe | None = None) -> Federation:
    """Return the Fed+ paper's synthetic data as float32: each party (client) has its own linear model."""
    recipe = recipe or RegressionRecipe()
    weights = true_weights(rng, recipe)
    return Federation(
        {party: _party(rng, recipe, weights[party]) for party in range(recipe.parties)},
        name="Fed+ synthetic regression",
    )


def true_weights(rng: Generator, recipe: RegressionRecipe) -> Array:
    """Draw the true weights of all parties (clients), one party per row. `fed_plus_regression` draws the same
    weights from an `rng` that starts in the same state."""
    center, outlying = (
        rng.normal(0.0, sqrt(variance), recipe.features)
        for variance in (recipe.center, recipe.outlying_center)
    )
    noise = rng.laplace(0.0, recipe.laplace, (recipe.parties, recipe.features))
    usual = np.arange(recipe.parties) < recipe.parties - recipe.outliers
    return np.where(usual[:, None], center, outlying) + noise


def input_variances(recipe: RegressionRecipe) -> Array:
    """Return the variance of each input coordinate: 1, 2^-1.1, ..., 50^-1.1, 1, 2^-1.1, ... by default."""
    return (1.0 + np.arange(recipe.features) % recipe.period) ** -recipe.decay


def _party(rng: Generator, recipe: RegressionRecipe, weights: Array) -> ClientData:
    mean = rng.normal(0.0, sqrt(recipe.input_mean), recipe.features)
    shape = (recipe.samples, recipe.features)
    inputs = mean + np.sqrt(input_variances(recipe)) * rng.standard_normal(shape)
    targets = inputs @ weights + rng.normal(0.0, sqrt(recipe.noise), recipe.samples)
    samples = Samples(inputs.astype(np.float32), targets.astype(np.float32))
    # Samples are independent, so the first ones are a random choice.
    cut = recipe.training
    nothing = samples.take(np.arange(0))
    return ClientData(samples.take(np.arange(cut)), nothing, samples.take(np.arange(cut, recipe.samples)))

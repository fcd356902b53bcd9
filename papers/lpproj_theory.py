"""Robustness and fairness of lp-proj in closed form, on the linear problem that its paper analyses.

"Personalized Federated Learning towards Communication Efficiency, Robustness and Fairness", section 4.2:
Propositions 1 and 2, and Figure 1. What follows is derived from the setting that the section states; the
paper's own formulas are in an appendix that we have not seen, but for its best pull and its threshold, with
which these agree.

**The setting.** Client k has n samples y = xi' w_k + z with noise N(0, sigma^2), and covariates whose Gram
matrix is b n I. Up to a constant its loss is b/2 |x - v_k|^2, where v_k is its least-squares estimate, off
from w_k by N(0, s^2) in every coordinate, s^2 = sigma^2 / (b n). There is one round, with as many local steps
as it takes, in which all N clients take part and the first N_a are malicious.

**What is sent.** With infinitely many steps, the local copies of pFedMe and Ditto come to v_k, and that of
lp-proj to P v_k. The server sends back the mean m of all messages, and a client's own model then minimises
its loss plus pull/2 |x - m|^2, or pull/2 |P x - m|^2. As rows of P are orthonormal, a coordinate within reach
of the pull is (b v_k + pull m) / (b + pull) and all others stay at v_k. There are d of the former for pFedMe
and Ditto, which therefore coincide, and d_sub for lp-proj.

**How far off that is.** A benign client's error in a coordinate within reach has, over noise and attack, the
mean square

    g(pull) = (b^2 s^2 + 2 b pull s^2 / N + pull^2 C) / (b + pull)^2,

where C is the mean square of m - w_k; in any other coordinate it is g(0) = s^2. It is least at

    pull* = (1 - 1/N) b s^2 / (C - s^2 / N),

and above s^2, where a pull does harm and the smaller subspace is the better one, from 2 pull* / (1 - pull*/b)
on. The attacks differ in C alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Attack: TypeAlias = Literal["none", "same-value", "sign-flip", "gaussian"]
Method: TypeAlias = Literal["pfedme", "ditto", "lp-proj"]

ATTACKS: Final[tuple[Attack, ...]] = ("same-value", "sign-flip", "gaussian")
METHODS: Final[tuple[Method, ...]] = ("pfedme", "ditto", "lp-proj")


@dataclass(frozen=True, kw_only=True)
class LinearProblem:
    """The numbers of the setting; by default those of Figure 1.

    `samples`    n of every client.
    `clients`    N, of which `malicious` are N_a.
    `dim`        d.
    `subspace`   d_sub.
    `curvature`  b.
    `noise`      sigma.
    `spread`     Sigma_1: in every coordinate, the mean over benign clients of the square of w_k minus the sum
                 of all benign w_j over N.
    `strength`   tau of the attacks.

    True parameters are independent and N(0, v) in every coordinate, with a v that has this spread. Only the
    sign-flipping attack asks where their mean is, and only the variance over clients asks for their law.
    """

    samples: int = 200
    clients: int = 100
    malicious: int = 20
    dim: int = 100
    subspace: int = 10
    curvature: float = 1.0
    noise: float = 1.0
    spread: float = 0.1
    strength: float = 100.0

    @property
    def error(self) -> float:
        """s^2, the variance of a least-squares estimate in a coordinate."""
        return self.noise**2 / (self.curvature * self.samples)

    def _malicious(self, attack: Attack) -> int:
        return 0 if attack == "none" else self.malicious

    def parameter_variance(self, attack: Attack) -> float:
        """Return v, the variance with this spread."""
        benign = self.clients - self._malicious(attack)
        return self.spread / (1 - 2 / self.clients + benign / self.clients**2)

    def distance(self, attack: Attack) -> float:
        """Return C: the mean square of the mean message minus a benign parameter, in a coordinate."""
        number, malicious = self.clients, self._malicious(attack)
        benign = self.spread + (number - malicious) * self.error / number**2
        return benign + malicious * self._power(attack) / number**2

    def _power(self, attack: Attack) -> float:
        """Return the mean square of a malicious message in a coordinate."""
        if attack == "sign-flip":  # whatever else it is, it is independent of all benign ones and has mean 0
            return self.strength**2 * (self.parameter_variance(attack) + self.error)
        return 0.0 if attack == "none" else self.strength**2

    def best_pull(self, attack: Attack) -> float:
        """Return lambda* of the paper, at which all methods have their least loss."""
        gain = (1 - 1 / self.clients) * self.curvature * self.error
        return gain / (self.distance(attack) - self.error / self.clients)

    def threshold(self, attack: Attack) -> float:
        """Return the least pull with which lp-proj has at most the loss of the others, or infinity."""
        best = self.best_pull(attack)
        return 2 * best / (1 - best / self.curvature) if best < self.curvature else math.inf

    def square_error(self, attack: Attack, pull: float) -> float:
        """Return g, of a coordinate that is pulled."""
        own = self.curvature**2 * self.error
        both = 2 * self.curvature * pull * self.error / self.clients
        return (own + both + pull**2 * self.distance(attack)) / (self.curvature + pull) ** 2

    def reached(self, method: Method) -> int:
        """Return how many coordinates are pulled."""
        return self.subspace if method == "lp-proj" else self.dim

    def loss(self, method: Method, attack: Attack, pull: float) -> float:
        """Return the expected test loss, averaged over benign clients."""
        pulled = self.reached(method)
        error = pulled * self.square_error(attack, pull) + (self.dim - pulled) * self.error
        return self.noise**2 / 2 + self.curvature / 2 * error

    def loss_variance(self, method: Method, pull: float) -> float:
        """Without an attack, the expected variance over clients of their test losses.

        A client's loss is its mean over noise here, given all true parameters: of what differs between
        clients, only |P (w_k - mean)|^2 is left. Its variance, twice the trace of the square of the matrix of
        covariances that it has, grows with the number of coordinates that are pulled.
        """
        number, variance = self.clients, self.parameter_variance("none")
        share = (pull / (self.curvature + pull)) ** 4
        of_squares = 2 * self.reached(method) * variance**2 * (1 - 1 / number) * (1 - 2 / number)
        return self.curvature**2 / 4 * share * of_squares


# --- the same, by doing it -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Draw:
    """One world: `parameters` are the clients' true ones, a row for each, and `estimates` what they send."""

    problem: LinearProblem
    parameters: Floats
    estimates: Floats
    projection: Floats

    @classmethod
    def of(cls, problem: LinearProblem, attack: Attack, rng: np.random.Generator) -> Draw:
        """Draw samples, and solve the least squares."""
        deviation = math.sqrt(problem.parameter_variance(attack))
        parameters = rng.normal(scale=deviation, size=(problem.clients, problem.dim))
        scale = math.sqrt(problem.curvature * problem.samples)
        covariates = scale * orthonormal(problem.samples, problem.dim, rng)
        noise = rng.normal(scale=problem.noise, size=(problem.clients, problem.samples))
        observed = parameters @ covariates.T + noise
        estimates: Floats = np.asarray(np.linalg.lstsq(covariates, observed.T, rcond=None)[0].T, np.float64)
        return cls(problem, parameters, estimates, orthonormal(problem.dim, problem.subspace, rng).T)

    def losses(self, method: Method, attack: Attack, pull: float, rng: np.random.Generator) -> Floats:
        """Return the loss of every benign client: the mean over the noise of test samples."""
        problem, subspace = self.problem, self._subspace(method)
        sent = self.estimates @ subspace.T
        malicious = 0 if attack == "none" else problem.malicious
        if malicious:
            sent[:malicious] = messages(attack, sent[:malicious], problem.strength, rng)
        mean, honest = sent.mean(axis=0), self.estimates[malicious:]
        moved = pull / (problem.curvature + pull) * (mean - honest @ subspace.T)
        off = honest + moved @ subspace - self.parameters[malicious:]
        return np.asarray(problem.noise**2 / 2 + problem.curvature / 2 * np.square(off).sum(axis=1))

    def _subspace(self, method: Method) -> Floats:
        return self.projection if method == "lp-proj" else np.eye(self.problem.dim)


def messages(attack: Attack, honest: Floats, strength: float, rng: np.random.Generator) -> Floats:
    """Return what malicious clients send, a row for each, in place of honest messages."""
    factors = rng.normal(scale=strength, size=(len(honest), 1))
    if attack == "gaussian":
        return rng.normal(scale=strength, size=honest.shape)
    return -np.abs(factors) * honest if attack == "sign-flip" else factors * np.ones_like(honest)


def orthonormal(rows: int, columns: int, rng: np.random.Generator) -> Floats:
    """Return a matrix with orthonormal columns, in a random direction."""
    return np.asarray(np.linalg.qr(rng.normal(size=(rows, columns)))[0])

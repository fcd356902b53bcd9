"""The algorithms there are, by name, with the parameters that each of them takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from protocols.afl import AFL
from protocols.algorithm import AnyAlgorithm
from protocols.apfl import APFL
from protocols.checks import MissingBound, index_range_parameters, meanings_of, shown
from protocols.ditto import Ditto
from protocols.fedavg import FedAvg, LocalTraining, PerFedAvg
from protocols.fedbc import FedBC, PerFedBC
from protocols.fedplus import FedPlus
from protocols.lpproj import LpProj1, LpProj2
from protocols.order_statistics import MedianByCounts, TrimmedMean
from protocols.partial_personalisation import FedAlt, FedSim, LGFedAvg
from protocols.pfedme import PFedMe
from protocols.privacy_budget import PrivacyBudget
from protocols.qffl import QFFL
from protocols.quantised import Quantised
from protocols.rfa import RFA, RFA1
from protocols.rsa import RSA
from protocols.scaffold import Scaffold
from protocols.serialisation import Vector
from protocols.server_optimiser import FedOpt, of_other_kinds
from protocols.simplicial import SimplicialFL
from protocols.sketched_sgd import SketchedSGD
from protocols.splitting import Splitting
from protocols.tilted_erm import TERM
from secagg.errors import ParameterError

_COMMON: Final = ("dim", "clients")
_PRIVACY: Final = "privacy"
_INITIAL: Final = "initial"


@dataclass(frozen=True)
class Parameter:
    """What may be set: its default, what it means, and whether there is no way without it.

    `private` ones belong to the budget of the private variant.
    """

    name: str
    default: Any
    meaning: str
    required: bool = False
    private: bool = False


@dataclass(frozen=True)
class CatalogueEntry:
    """An algorithm by name.

    `label`    how the paper, or a reader of a report, calls it.
    `example`  values for the bounds that have no default, which suit nobody's data in particular.
    `fixed`    the parameters that make it this algorithm, and no other of its family.
    """

    name: str
    label: str
    make: Callable[..., AnyAlgorithm]
    summary: str
    example: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What may be set beside the model's size and the number of clients."""
        named = inspect.signature(self.make).parameters
        return {key: each for key, each in named.items() if key not in _COMMON and key not in self.fixed}

    @property
    def index_range_parameters(self) -> tuple[str, ...]:
        """The parameters that say which places of a model are meant, and that may name layers of one."""
        return tuple(name for name in index_range_parameters(self._kind) if name in self.parameters)

    @property
    def _kind(self) -> Callable[..., AnyAlgorithm]:
        return self.make.func if isinstance(self.make, partial) else self.make

    @property
    def budget(self) -> type[PrivacyBudget] | None:
        """What its private variant is planned with; None if it has none."""
        if _PRIVACY not in self.parameters:
            return None
        found: type[PrivacyBudget] | None = getattr(self._kind, "budget_type", None)
        return found

    @property
    def budget_names(self) -> tuple[str, ...]:
        """Parameters of that budget alone, which the algorithm itself does not have."""
        common = {each.name for each in fields(PrivacyBudget)}
        named = () if self.budget is None else (each.name for each in fields(self.budget))
        return tuple(name for name in named if name not in common and name not in self.parameters)

    @property
    def settings(self) -> tuple[Parameter, ...]:
        """All that can be set by a name and a value, with what it means."""
        meanings = meanings_of(self._kind)
        own = (
            Parameter(name, each.default, meanings.get(name, ""), required=name in self.example)
            for name, each in self.parameters.items()
            if name != _PRIVACY
        )
        noise = meanings_of(self.budget)
        defaults = {} if self.budget is None else inspect.signature(self.budget).parameters
        return *own, *(
            Parameter(name, defaults[name].default, noise[name], defaults[name].default is None, private=True)
            for name in self.budget_names
        )

    def build(
        self, *, dim: int, clients: int, initial: Vector | None = None, **settings: Any
    ) -> AnyAlgorithm:
        """The algorithm. Raises `ParameterError` for a parameter that it does not have, or that is wrong, and
        with all names at once where several have to be set.

        `initial`  the model that clients begin with who are never sent one.
        """
        fixed = {**self.fixed, **({_INITIAL: initial} if _INITIAL in self.fixed else {})}
        for key in settings:
            if key not in self.parameters:
                raise ParameterError(self._no_such(key), parameter=key)
        missing: list[MissingBound] = []
        while True:
            try:
                found = self.make(dim=dim, clients=clients, **fixed, **settings)
            except MissingBound as error:
                if settings.get(error.name) is not None or error.name not in self.parameters:
                    raise
                # With some value in its place, it shows what else is missing.
                settings[error.name] = self.example.get(error.name, 1.0)
                missing.append(error)
                continue
            except ParameterError:
                if not missing:
                    raise
            if missing:
                alone = missing[0].parameter if len(missing) == 1 else None
                raise ParameterError("; ".join(map(str, missing)), parameter=alone)
            return found

    def _no_such(self, name: str) -> str:
        if name in self.budget_names:
            return f"{name} belongs to the private variant of {self.name}, and there is no noise"
        if name in self.fixed:
            return f"{name} is what makes it {self.name}, and cannot be set"
        known = {each.name: each for each in self.settings}
        return _unknown("parameter", name, known, f" of {self.name}")


def _entries() -> tuple[CatalogueEntry, ...]:
    clip = {"clip": 10.0}
    losses = clip | {"loss_cap": 5.0}
    adaptive = clip | {"server_rate": 0.01}
    bond = clip | {"lambda_max": 1.0}
    part = clip | {"personal_part": "-1:"}
    space = {"subspace": 2}
    return (
        CatalogueEntry("fedavg", "FedAvg", FedAvg, "the mean of all updates", clip, {"mu": 0.0}),
        CatalogueEntry(
            "fedprox",
            "FedProx",
            partial(FedAvg, mu=1.0),
            "the mean of updates pulled towards the common model",
            clip,
        ),
        CatalogueEntry(
            "fedavgm",
            "FedAvgM",
            partial(FedOpt, momentum=0.9),
            "the mean of all updates, with momentum",
            clip,
            of_other_kinds("sgd"),
        ),
        CatalogueEntry(
            "fedadam", "FedAdam", FedOpt, "the mean of all updates, by Adam", adaptive, of_other_kinds("adam")
        ),
        CatalogueEntry(
            "fedyogi", "FedYogi", FedOpt, "the mean of all updates, by Yogi", adaptive, of_other_kinds("yogi")
        ),
        CatalogueEntry(
            "local", "Local training", LocalTraining, "everybody trains alone: no sum at all", {}, _OWN_START
        ),
        CatalogueEntry("rfa", "RFA", RFA, "the geometric median of all models, by Weiszfeld's steps"),
        CatalogueEntry(
            "rfa-1",
            "RFA (one step)",
            RFA1,
            "one such step",
            {},
            {"steps": 1, "start_at": "model", "clip": None},
        ),
        CatalogueEntry(
            "median",
            "Median by counts",
            MedianByCounts,
            "the median in every coordinate, by bisection",
            {"reach": 1.0},
        ),
        CatalogueEntry(
            "trimmed-mean",
            "Trimmed mean",
            TrimmedMean,
            "a mean without the extremes, by bisection",
            {"reach": 1.0},
        ),
        CatalogueEntry(
            "simplicial",
            "Simplicial-FL",
            SimplicialFL,
            "the mean over the tail of largest losses",
            clip | {"loss_bound": 5.0},
        ),
        CatalogueEntry(
            "fedavg+", "FedAvg+", FedPlus, "personal models around a mean", clip, _plus("squared")
        ),
        CatalogueEntry(
            "fedgeomed+",
            "FedGeoMed+",
            FedPlus,
            "personal models around a geometric median",
            {},
            _plus("norm"),
        ),
        CatalogueEntry(
            "fedcomed+",
            "FedCoMed+",
            FedPlus,
            "personal models around a coordinate median",
            {},
            _plus("coordinates"),
        ),
        CatalogueEntry("fedbc", "FedBC", FedBC, "personal models within a distance of the common one", bond),
        CatalogueEntry("per-fedbc", "Per-FedBC", PerFedBC, "the same, for models that adapt by a step", bond),
        CatalogueEntry(
            "qffl", "q-FFL", QFFL, "losses to the power q + 1: fairer among clients", losses | {"rate": 0.1}
        ),
        CatalogueEntry("term", "TERM", TERM, "exponentially tilted losses", losses),
        CatalogueEntry("afl", "AFL", AFL, "the worst mixture of clients", losses),
        CatalogueEntry(
            "scaffold",
            "SCAFFOLD",
            Scaffold,
            "updates corrected by control variates",
            clip | {"steps": 10, "rate": 0.1},
        ),
        CatalogueEntry(
            "ditto", "Ditto", Ditto, "federated averaging, and personal models pulled towards it", clip
        ),
        CatalogueEntry("pfedme", "pFedMe", PFedMe, "personal models by Moreau envelopes", clip),
        CatalogueEntry(
            "per-fedavg", "Per-FedAvg", PerFedAvg, "a model from which one step adapts to each client", clip
        ),
        CatalogueEntry("apfl", "APFL", APFL, "mixtures of a common and a personal model", clip),
        CatalogueEntry(
            "fedalt",
            "FedAlt",
            FedAlt,
            "some parameters are personal, and trained before the others",
            part,
            _OWN_START,
        ),
        CatalogueEntry(
            "fedsim",
            "FedSim",
            FedSim,
            "some parameters are personal, and trained with the others",
            part,
            _OWN_START,
        ),
        CatalogueEntry(
            "lp-proj-1",
            "lp-proj-1",
            LpProj1,
            "personal models that agree in a subspace, by signs",
            space,
            _OWN_START,
        ),
        CatalogueEntry(
            "lp-proj-2",
            "lp-proj-2",
            LpProj2,
            "personal models that agree in a subspace",
            clip | space,
            _OWN_START,
        ),
        CatalogueEntry(
            "splitting",
            "Operator splitting",
            Splitting,
            "operator splitting by any alpha, beta and gamma",
            _STEP,
        ),
        *(
            CatalogueEntry(name, label, Splitting, what, _STEP, fixed)
            for name, label, what, fixed in _SCHEMES
        ),
        CatalogueEntry("rsa", "RSA", RSA, "personal models, and a common one that follows their signs"),
        CatalogueEntry(
            "lg-fedavg",
            "LG-FedAvg",
            LGFedAvg,
            "a shared head on personal layers",
            clip | {"shared_part": "-1:"},
            _LG,
        ),
        CatalogueEntry(
            "sketch",
            "Sketched SGD",
            SketchedSGD,
            "a sketch of the sum says which few coordinates to ask for",
            clip,
        ),
        CatalogueEntry(
            "quantised",
            "Quantised FedAvg",
            Quantised,
            "updates in a few levels, on a common scale",
            {"reach": 1.0},
        ),
    )


# Every operator splitting needs a clip and a step size.
_STEP: Final[Mapping[str, Any]] = MappingProxyType({"clip": 10.0, "eta": 0.1})
# Gradient steps have nothing of what approaches a proximal point.
_FORWARD: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "local_map": "gradient",
        "rate": None,
        "exact": True,
        "start_at": "average",
        "local_memory": 0,
        "local_chunk": 1,
    }
)


def _scheme(alpha: float, beta: float, gamma: float, **local: Any) -> Mapping[str, Any]:
    """Return what makes an algorithm of the chapter one of the splitting family."""
    return {"alpha": alpha, "beta": beta, "gamma": gamma, **(local or {"local_map": "proximal"})}


# The family of operator splittings: name, label, summary, and what makes it this one.
_SCHEMES: Final[tuple[tuple[str, str, str, Mapping[str, Any]], ...]] = (
    (
        "fedsplit",
        "FedSplit",
        "reflected proximal maps and a reflected mean (Peaceman-Rachford)",
        _scheme(2.0, 2.0, 1.0),
    ),
    (
        "fedpi",
        "FedPi",
        "half a step of FedSplit: slower and more stable (Douglas-Rachford)",
        _scheme(2.0, 2.0, 0.5),
    ),
    ("fedrp", "FedRP", "the mean of reflected proximal maps", _scheme(2.0, 1.0, 1.0)),
    (
        "splitting-fedprox",
        "FedProx (splitting)",
        "the mean of proximal maps, exact or by local steps",
        _scheme(1.0, 1.0, 1.0),
    ),
    (
        "splitting-fedavg",
        "FedAvg (splitting)",
        "the mean of some gradient steps",
        _scheme(1.0, 1.0, 1.0, **_FORWARD),
    ),
    (
        "reflected-fedprox",
        "Reflected FedProx",
        "proximal maps, and a reflected mean",
        _scheme(1.0, 2.0, 1.0),
    ),
    (
        "reflected-fedavg",
        "Reflected FedAvg",
        "gradient steps, and a reflected mean",
        _scheme(1.0, 2.0, 1.0, **_FORWARD),
    ),
)


# Clients that train what nobody sends them begin with a model that whoever builds the algorithm provides.
_OWN_START: Final[Mapping[str, Any]] = MappingProxyType({_INITIAL: None})
# Of partial personalisation, what is neither shared nor set.
_LG: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **_OWN_START,
        "personal_part": None,
        "weigh_by": "samples",
        "stateful": True,
        "finetune": 0,
        "finetune_rate": None,
        "robust": False,
        "median_steps": 3,
        "nu": 1e-6,
    }
)


def _plus(psi: str) -> Mapping[str, Any]:
    """Which of the family Fed+ it is. Groups of parameters with different ones need Python."""
    return {"psi": psi, "groups": ()}


_registered: Final[dict[str, CatalogueEntry]] = {}
CATALOGUE: Final[Mapping[str, CatalogueEntry]] = MappingProxyType(_registered)


def register(entry: CatalogueEntry) -> None:
    """Add an algorithm to the catalogue, so that its name is accepted wherever a catalogue name is.

    Raises `ParameterError` if the name is taken.
    """
    if entry.name in _registered:
        raise ParameterError(
            f"there is an algorithm {entry.name!r} already: choose another name", parameter="name"
        )
    _registered[entry.name] = entry


for _entry in _entries():
    register(_entry)


def find(name: str) -> CatalogueEntry:
    """The entry of that name; raises `ParameterError` that names the nearest one."""
    if name not in CATALOGUE:
        raise ParameterError(_unknown("algorithm", name, CATALOGUE))
    return CATALOGUE[name]


def _unknown(what: str, name: str, known: Mapping[str, object], where: str = "") -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"
    return f"there is no {what} {shown(name)}{where}: {hint}"

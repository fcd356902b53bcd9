"""The registry of algorithms, from which scenario files and commands select by name. `register` adds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from protocols.afl import AFL
from protocols.algorithm import AnyAlgorithm
from protocols.apfl import APFL
from protocols.catalogue_entry import INITIAL, CatalogueEntry, describe_unknown_name
from protocols.ditto import Ditto
from protocols.fedavg import FedAvg
from protocols.fedbc import FedBC, PerFedBC
from protocols.fedplus import FedPlus
from protocols.local_only_training import LocalTraining
from protocols.lpproj import LpProj1, LpProj2
from protocols.order_statistics import MedianByCounts, TrimmedMean
from protocols.partial_personalisation import FedAlt, FedSim, LGFedAvg
from protocols.per_fedavg import PerFedAvg
from protocols.pfedme import PFedMe
from protocols.qffl import QFFL
from protocols.quantised import Quantised
from protocols.rfa import RFA, RFA1
from protocols.rsa import RSA
from protocols.scaffold import Scaffold
from protocols.server_optimiser import FedOpt, of_other_kinds
from protocols.simplicial import SimplicialFL
from protocols.sketched_sgd import SketchedSGD
from protocols.splitting import Splitting
from protocols.tilted_erm import TERM
from secagg.errors import ParameterError

_CLIP: Final = {"clip": 10.0}
_LOSSES: Final = _CLIP | {"loss_cap": 5.0}
_ADAPTIVE: Final = _CLIP | {"server_rate": 0.01}
_LIMITS: Final = _CLIP | {"lambda_max": 1.0}
_PART: Final = _CLIP | {"personal_part": "-1:"}
_SPACE: Final = {"subspace": 2}
_REACH: Final = {"reach": 1.0}
# Every entry for operator splitting needs a clip and a step size.
_STEP: Final = _CLIP | {"eta": 0.1}
# Entries whose local map is gradient steps fix all parameters that only proximal maps use.
_FORWARD: Final[Mapping[str, Any]] = {
    "local_map": "gradient",
    "rate": None,
    "exact": True,
    "start_at": "average",
    "local_memory": 0,
    "local_chunk": 1,
}
# If clients are never sent a whole model, the caller of `build` provides their initial model.
_OWN_START: Final = {INITIAL: None}
_ONE_STEP: Final = {"steps": 1, "start_at": "model", "clip": None}
# The parameters of partial personalisation that users of LG-FedAvg cannot set.
_LG: Final = _OWN_START | {
    "personal_part": None,
    "weigh_by": "samples",
    "stateful": True,
    "finetune": 0,
    "finetune_rate": None,
    "robust": False,
    "median_steps": 3,
    "nu": 1e-6,
}


def _entry(
    label: str, make: Callable[..., AnyAlgorithm], summary: str, *values: Any, name: str = ""
) -> CatalogueEntry:
    """Return a catalogue entry. `values` are up to two dicts by parameter name: example values, and values
    that users cannot change. The default `name` is the label in lower case, with hyphens."""
    return CatalogueEntry(name or label.lower().replace(" ", "-"), label, make, summary, *values)


def _plus(psi: str) -> Mapping[str, Any]:
    """Return the values of the parameters that users of Fed+ with the penalty `psi` cannot set, by name. One
    is `groups`: groups of parameters with different penalties can only be set in Python."""
    return {"psi": psi, "groups": ()}


def _splitting(
    label: str, summary: str, alpha: float, beta: float, gamma: float, *, name: str = "", **local: Any
) -> CatalogueEntry:
    """Return an entry for the algorithm `Splitting` with these parameters, which users cannot change. `local`
    has the parameters of the map that each client applies to a point; without any, it is a proximal map."""
    scheme = {"alpha": alpha, "beta": beta, "gamma": gamma, **(local or {"local_map": "proximal"})}
    return _entry(label, Splitting, summary, _STEP, scheme, name=name)


_ENTRIES: Final = (
    _entry("FedAvg", FedAvg, "the mean of all updates", _CLIP, {"mu": 0.0}),
    _entry("FedProx", partial(FedAvg, mu=1.0), "the mean of updates pulled towards the common model", _CLIP),
    _entry(
        "FedAvgM",
        partial(FedOpt, momentum=0.9),
        "the mean of all updates, with momentum",
        _CLIP,
        of_other_kinds("sgd"),
    ),
    _entry(
        "FedAdam", FedOpt, "the mean of all updates, applied with Adam", _ADAPTIVE, of_other_kinds("adam")
    ),
    _entry(
        "FedYogi", FedOpt, "the mean of all updates, applied with Yogi", _ADAPTIVE, of_other_kinds("yogi")
    ),
    _entry(
        "Local training",
        LocalTraining,
        "each client trains alone, without sums",
        {},
        _OWN_START,
        name="local",
    ),
    _entry("RFA", RFA, "the geometric median of all models, by Weiszfeld's steps"),
    _entry(
        "RFA (one step)", RFA1, "one Weiszfeld step towards the geometric median", {}, _ONE_STEP, name="rfa-1"
    ),
    _entry(
        "Median by counts",
        MedianByCounts,
        "the median in every coordinate, by bisection",
        _REACH,
        name="median",
    ),
    _entry("Trimmed mean", TrimmedMean, "a mean without the extremes, by bisection", _REACH),
    _entry(
        "Simplicial-FL",
        SimplicialFL,
        "the mean over the clients with the largest losses (the tail)",
        _CLIP | {"loss_bound": 5.0},
        name="simplicial",
    ),
    _entry("FedAvg+", FedPlus, "personal models around a mean", _CLIP, _plus("squared")),
    _entry("FedGeoMed+", FedPlus, "personal models around a geometric median", {}, _plus("norm")),
    _entry("FedCoMed+", FedPlus, "personal models around a coordinate median", {}, _plus("coordinates")),
    _entry("FedBC", FedBC, "personal models within a distance of the common one", _LIMITS),
    _entry("Per-FedBC", PerFedBC, "FedBC for models that each client adapts with one step", _LIMITS),
    _entry(
        "q-FFL",
        QFFL,
        "losses to the power q + 1, for more equal losses among clients",
        _LOSSES | {"rate": 0.1},
        name="qffl",
    ),
    _entry("TERM", TERM, "exponentially tilted losses", _LOSSES),
    _entry("AFL", AFL, "the mean over the mixture of clients with the largest loss", _LOSSES),
    _entry("SCAFFOLD", Scaffold, "updates corrected by control variates", _CLIP | {"steps": 10, "rate": 0.1}),
    _entry("Ditto", Ditto, "federated averaging, and personal models pulled towards the average", _CLIP),
    _entry("pFedMe", PFedMe, "personal models by Moreau envelopes", _CLIP),
    _entry("Per-FedAvg", PerFedAvg, "a model that each client adapts with one step", _CLIP),
    _entry("APFL", APFL, "mixtures of a common and a personal model", _CLIP),
    _entry(
        "FedAlt", FedAlt, "some parameters are personal and trained before the shared ones", _PART, _OWN_START
    ),
    _entry(
        "FedSim",
        FedSim,
        "some parameters are personal and trained together with the shared ones",
        _PART,
        _OWN_START,
    ),
    _entry("lp-proj-1", LpProj1, "personal models that agree in a subspace, by signs", _SPACE, _OWN_START),
    _entry("lp-proj-2", LpProj2, "personal models that agree in a subspace", _CLIP | _SPACE, _OWN_START),
    _entry(
        "Operator splitting",
        Splitting,
        "operator splitting by any alpha, beta and gamma",
        _STEP,
        name="splitting",
    ),
    _splitting("FedSplit", "reflected proximal maps and a reflected mean (Peaceman-Rachford)", 2.0, 2.0, 1.0),
    _splitting("FedPi", "half a step of FedSplit: slower and more stable (Douglas-Rachford)", 2.0, 2.0, 0.5),
    _splitting("FedRP", "the mean of reflected proximal maps", 2.0, 1.0, 1.0),
    _splitting(
        "FedProx (splitting)",
        "the mean of proximal maps, exact or by local steps",
        1.0,
        1.0,
        1.0,
        name="splitting-fedprox",
    ),
    _splitting(
        "FedAvg (splitting)",
        "the mean of some gradient steps",
        1.0,
        1.0,
        1.0,
        name="splitting-fedavg",
        **_FORWARD,
    ),
    _splitting("Reflected FedProx", "proximal maps, and a reflected mean", 1.0, 2.0, 1.0),
    _splitting("Reflected FedAvg", "gradient steps, and a reflected mean", 1.0, 2.0, 1.0, **_FORWARD),
    _entry("RSA", RSA, "personal models, and a common model that moves by the signs of their differences"),
    _entry("LG-FedAvg", LGFedAvg, "a shared head on personal layers", _CLIP | {"shared_part": "-1:"}, _LG),
    _entry(
        "Sketched SGD",
        SketchedSGD,
        "a sketch of the sum selects the few coordinates to request",
        _CLIP,
        name="sketch",
    ),
    _entry(
        "Quantised FedAvg",
        Quantised,
        "updates rounded to a few levels on a common scale",
        _REACH,
        name="quantised",
    ),
)


_registered: Final[dict[str, CatalogueEntry]] = {}
CATALOGUE: Final[Mapping[str, CatalogueEntry]] = MappingProxyType(_registered)


def register(entry: CatalogueEntry) -> None:
    """Add an algorithm to the catalogue, so that scenarios and commands accept its name. Raises
    `ParameterError` if the name is taken."""
    if entry.name in _registered:
        raise ParameterError(
            f"there is an algorithm {entry.name!r} already: choose another name", parameter="name"
        )
    _registered[entry.name] = entry


for _each in _ENTRIES:
    register(_each)


def find(name: str) -> CatalogueEntry:
    """Return the entry called `name`, or raise a `ParameterError` that suggests the nearest name."""
    if name not in CATALOGUE:
        raise ParameterError(describe_unknown_name("algorithm", name, CATALOGUE), parameter="name")
    return CATALOGUE[name]

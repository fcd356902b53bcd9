"""The registry of algorithms, by name. `register` adds one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from protocols.afl import AFL
from protocols.apfl import APFL
from protocols.catalogue_entry import INITIAL, CatalogueEntry, describe_unknown_name
from protocols.ditto import Ditto
from protocols.fedavg import FedAvg, LocalTraining, PerFedAvg
from protocols.fedbc import FedBC, PerFedBC
from protocols.fedplus import FedPlus
from protocols.lpproj import LpProj1, LpProj2
from protocols.order_statistics import MedianByCounts, TrimmedMean
from protocols.partial_personalisation import FedAlt, FedSim, LGFedAvg
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


def _entries() -> tuple[CatalogueEntry, ...]:
    clip = {"clip": 10.0}
    losses = clip | {"loss_cap": 5.0}
    adaptive = clip | {"server_rate": 0.01}
    limits = clip | {"lambda_max": 1.0}
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
            "fedadam",
            "FedAdam",
            FedOpt,
            "the mean of all updates, applied with Adam",
            adaptive,
            of_other_kinds("adam"),
        ),
        CatalogueEntry(
            "fedyogi",
            "FedYogi",
            FedOpt,
            "the mean of all updates, applied with Yogi",
            adaptive,
            of_other_kinds("yogi"),
        ),
        CatalogueEntry(
            "local",
            "Local training",
            LocalTraining,
            "each client trains alone, without sums",
            {},
            _OWN_START,
        ),
        CatalogueEntry("rfa", "RFA", RFA, "the geometric median of all models, by Weiszfeld's steps"),
        CatalogueEntry(
            "rfa-1",
            "RFA (one step)",
            RFA1,
            "one Weiszfeld step towards the geometric median",
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
            "the mean over the clients with the largest losses (the tail)",
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
        CatalogueEntry(
            "fedbc", "FedBC", FedBC, "personal models within a distance of the common one", limits
        ),
        CatalogueEntry(
            "per-fedbc",
            "Per-FedBC",
            PerFedBC,
            "FedBC for models that each client adapts with one step",
            limits,
        ),
        CatalogueEntry(
            "qffl",
            "q-FFL",
            QFFL,
            "losses to the power q + 1, for more equal losses among clients",
            losses | {"rate": 0.1},
        ),
        CatalogueEntry("term", "TERM", TERM, "exponentially tilted losses", losses),
        CatalogueEntry(
            "afl", "AFL", AFL, "the mean over the mixture of clients with the largest loss", losses
        ),
        CatalogueEntry(
            "scaffold",
            "SCAFFOLD",
            Scaffold,
            "updates corrected by control variates",
            clip | {"steps": 10, "rate": 0.1},
        ),
        CatalogueEntry(
            "ditto",
            "Ditto",
            Ditto,
            "federated averaging, and personal models pulled towards the average",
            clip,
        ),
        CatalogueEntry("pfedme", "pFedMe", PFedMe, "personal models by Moreau envelopes", clip),
        CatalogueEntry(
            "per-fedavg", "Per-FedAvg", PerFedAvg, "a model that each client adapts with one step", clip
        ),
        CatalogueEntry("apfl", "APFL", APFL, "mixtures of a common and a personal model", clip),
        CatalogueEntry(
            "fedalt",
            "FedAlt",
            FedAlt,
            "some parameters are personal and trained before the shared ones",
            part,
            _OWN_START,
        ),
        CatalogueEntry(
            "fedsim",
            "FedSim",
            FedSim,
            "some parameters are personal and trained together with the shared ones",
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
        CatalogueEntry(
            "rsa",
            "RSA",
            RSA,
            "personal models, and a common model that moves by the signs of their differences",
        ),
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
            "a sketch of the sum selects the few coordinates to request",
            clip,
        ),
        CatalogueEntry(
            "quantised",
            "Quantised FedAvg",
            Quantised,
            "updates rounded to a few levels on a common scale",
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


# Clients that are never sent a model begin with one that the caller of `build` provides.
_OWN_START: Final[Mapping[str, Any]] = MappingProxyType({INITIAL: None})
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
    """Return the entry of that name. Raises `ParameterError`, with the nearest name, if there is none."""
    if name not in CATALOGUE:
        raise ParameterError(describe_unknown_name("algorithm", name, CATALOGUE), parameter="name")
    return CATALOGUE[name]

"""Connects this process to Ray: to a cluster, or to a local Ray that begins and ends with this process.

A process has one connection, which all its channels share. If `ray.init` was called before, the caller keeps
control over the connection: it is used as it is, and never closed here.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from sims.config_problems import ConfigError
from sims.runtime.ray.errors import one_line
from sims.runtime.ray.reachability import why_unreachable

LOCAL: Final = "local"  # the address that stands for a new Ray on this machine
_UNIT: Final = 10_000  # Ray counts resources in this part of one

# What Ray reads when it is imported.
_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",  # It reports nothing to its makers.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # It hides no GPU from actors that reserve none.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # It prints no errors: a lost actor is reported by its channel.
}


@dataclass(frozen=True, kw_only=True)
class RayPlace:
    """Where actors run: the `address` of a cluster, "auto" for one that runs on this machine, or "local" for
    a new one. Each actor takes `num_cpus` CPUs and `num_gpus` GPUs; 1/k of a GPU lets k actors share it."""

    address: str = LOCAL
    num_cpus: float = 1.0
    num_gpus: float = 0.0


def require_ray() -> None:
    """Raise `ConfigError` unless Ray is installed."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # A directory called `ray` has no origin.
        raise ConfigError("Ray is not installed: pip install 'secagg[ray]'")


def import_ray() -> Any:
    """Return the module `ray`. Raise `ConfigError` if it is not installed."""
    require_ray()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


@dataclass
class Cluster:
    """This process's connection to Ray. `reserved` counts the actors of this process that hold resources."""

    address: str
    own: bool  # whether this process connected, and has to disconnect
    users: int = 0
    reserved: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def facts(self) -> dict[str, Any]:
        """Return what a run records about the cluster: its address, version, and size."""
        ray = import_ray()
        alive = _alive_nodes()
        return {
            "address": self.address,
            "ray": ray.__version__,
            "nodes": len(alive),
            "cpus": sum(each.get("CPU", 0) for each in alive),
            "gpus": sum(each.get("GPU", 0) for each in alive),
        }

    def capacity(self, place: RayPlace) -> float:
        """Return how many actors the cluster can host at once, by the resources of its nodes."""
        needs = {"CPU": place.num_cpus, "GPU": place.num_gpus}
        return sum(_fitting(node, needs) for node in _alive_nodes())


def _alive_nodes() -> list[Mapping[str, float]]:
    """Return the resources of each node that is alive."""
    return [node["Resources"] for node in import_ray().nodes() if node["Alive"]]


def _fitting(resources: Mapping[str, float], needs: Mapping[str, float]) -> float:
    """Return how many actors with these needs a node can host; infinity if they need nothing."""
    return min((_times(name, resources.get(name, 0), need) for name, need in needs.items()))


def _times(name: str, available: float, need: float) -> float:
    """Return how often a need fits into a resource. A part of a GPU must be a part of a single one."""
    needed = round(need * _UNIT)
    if not needed:
        return float("inf")
    if name == "GPU" and needed < _UNIT:
        return int(available) * (_UNIT // needed)
    return round(available * _UNIT) // needed


_lock: Final = threading.Lock()
_cluster: Cluster | None = None


def connect(address: str) -> Cluster:
    """Return the connection to the cluster at `address`, and count its user. Raise `ConfigError` if Ray is
    not installed, the cluster cannot be reached, or this process is connected to another one."""
    global _cluster
    ray = import_ray()
    with _lock:
        if _cluster is None or not ray.is_initialized():
            _cluster = _connected(ray, address)
        elif _cluster.own and _cluster.address != address:
            raise ConfigError(
                f"this process is connected to the Ray cluster {_cluster.address}, and cannot use {address} "
                "at the same time"
            )
        _cluster.users += 1
        return _cluster


def disconnect(cluster: Cluster) -> None:
    """Record that a user of the connection is done. The last one closes it, unless it was there before."""
    global _cluster
    with _lock:
        cluster.users -= 1
        if cluster.users or cluster is not _cluster:
            return
        _cluster = None
        if cluster.own:
            with _signal_handlers_kept():
                import_ray().shutdown()


def _connected(ray: Any, address: str) -> Cluster:
    if ray.is_initialized():  # by the program that uses this package, or because this is a task of Ray
        return Cluster(ray.get_runtime_context().gcs_address, own=False)
    more: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != LOCAL and (reason := why_unreachable(address)):
        raise _unreachable(address, reason)
    try:
        with _signal_handlers_kept():
            if address == LOCAL:
                with _sigterm_kept_from_children():
                    ray.init(address=address, include_dashboard=False, **more)
            else:
                ray.init(address=address, **more)
    except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        raise _unreachable(address, f"{one_line(error)}{_hint(address, error)}") from None
    return Cluster(address, own=True)


def _unreachable(address: str, reason: str) -> ConfigError:
    if address == LOCAL:
        return ConfigError(f"Ray cannot be started on this machine: {reason}")
    return ConfigError(f"the Ray cluster {address} cannot be reached: {reason}")


def _hint(address: str, error: Exception) -> str:
    if "version mismatch" in str(error).lower():
        return ": install the same Ray and Python here and on its nodes"
    if address == LOCAL:
        return ""
    return f' (ray start --head starts one, and "{LOCAL}" needs none)'


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Undo what Ray does to the handler of SIGTERM, with which a sweep stops after a round."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _sigterm_kept_from_children() -> Iterator[None]:
    """Block SIGTERM, also in processes that are started meanwhile. A service manager sends it to all
    processes of a run, which ends after its round and needs its Ray until then. Ray blocks SIGINT itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Pools of worker processes for simulations. The workers end when the process that opened the pool ends."""

from sims.workers.message_pipe import MessagePipe, PipeClosed
from sims.workers.worker_pool import (
    WorkerEvent,
    WorkerExited,
    WorkerMessage,
    WorkerPool,
    WorkerStartError,
    WorkerUnavailable,
    open_worker_pool,
)

__all__ = [
    "MessagePipe",
    "PipeClosed",
    "WorkerEvent",
    "WorkerExited",
    "WorkerMessage",
    "WorkerPool",
    "WorkerStartError",
    "WorkerUnavailable",
    "open_worker_pool",
]

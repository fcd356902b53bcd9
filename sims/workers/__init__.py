"""Worker processes for simulations: started fast, killed at will, never orphaned."""

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

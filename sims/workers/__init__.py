"""Worker processes for simulations. They start fast, can be killed, and never outlive their owner."""

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

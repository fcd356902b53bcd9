"""Requests between the processes of NVFlare, which call themselves cells.

Requests go directly to a process and are answered at once, whereas a task waits until its site asks for one
(`task_request_interval`). NVFlare streams large ones in parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from secagg.errors import SecaggError

Cell: TypeAlias = Any  # nvflare.fuel.f3.cellnet.cell.Cell, which has no types
CHANNEL: Final = "secagg"
LETTER: Final = "letter"  # a topic: a letter of the tunnel, which is answered by another
OUTCOME: Final = "outcome"  # a topic: how the run ended at this site; None if it goes on
JOB: Final = "secagg_job"  # a header: the job that a request is about
Handler: TypeAlias = Callable[[str, Any], Any]  # takes a job and what was sent; returns the reply


def ask(cell: Cell, target: str, topic: str, content: Any, *, job: str, seconds: float) -> tuple[bool, Any]:
    """Send a request to the cell `target`. Return whether it was answered, and the answer. `seconds` is the
    longest wait in which nothing arrives."""
    reply = cell.send_request(
        channel=CHANNEL,
        target=target,
        topic=topic,
        request=new_cell_message({JOB: job}, content),
        timeout=seconds,
        optional=True,  # NVFlare then does not log every site that is away as an error
    )
    is_answered = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
    return is_answered, reply.payload if is_answered else None


def serve_requests(cell: Cell, handlers: Mapping[str, Handler]) -> None:
    """Have the requests that arrive at `cell` answered by the handler of their topic, in threads of NVFlare.
    If it raises a `SecaggError`, the sender learns that there is no answer."""

    def serve(handler: Handler, request: Any) -> Any:
        try:
            reply = handler(str(request.get_header(JOB, "")), request.payload)
        except SecaggError as error:
            logging.getLogger(__name__).warning("no answer: %s", error)
            return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.PROCESS_EXCEPTION}, None)
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, reply)

    for topic, handler in handlers.items():
        cell.register_request_cb(
            channel=CHANNEL, topic=topic, cb=lambda request, handler=handler: serve(handler, request)
        )

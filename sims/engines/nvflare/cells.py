"""Requests between the processes of NVFlare, which call themselves cells.

Requests go directly to a process and are answered at once, whereas a task waits until its site asks for one
(`task_request_interval`). NVFlare streams large ones in parts.

Any cell of a federation can send a request to any other. So `serve_requests` answers one cell for each topic,
and hands on only what has the form of such a request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from secagg.errors import LocalError, SecaggError
from secagg.net.tunnel_letters import (
    INSTANCE_BYTES,
    KEY_BYTES,
    MAX_DATA,
    MAX_SEGMENTS,
    Letter,
    Segment,
)
from sims.config_problems import shown

Cell: TypeAlias = Any  # nvflare.fuel.f3.cellnet.cell.Cell, which has no types
CHANNEL: Final = "secagg"
LETTER: Final = "letter"  # a topic: a letter of the tunnel, which is answered by another
OUTCOME: Final = "outcome"  # a topic: how the run ended at this site; None if it goes on
JOB: Final = "secagg_job"  # a header: the job that a request is about
Handler: TypeAlias = Callable[[str, bytes], Any]  # takes a job and what was sent; returns the reply
_JOB_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")  # NVFlare's are UUIDs, and "simulate_job"
_EMPTY: Final = Letter(bytes(INSTANCE_BYTES), segments=(Segment(key=bytes(KEY_BYTES)),) * MAX_SEGMENTS)
LONGEST_LETTER: Final = len(_EMPTY.encode()) + MAX_DATA


class BadRequest(LocalError):
    """A request that no part of this adapter sends."""


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


def serve_requests(cell: Cell, handlers: Mapping[str, Handler], *, simulated: bool = False) -> None:
    """Have the requests that arrive at `cell` answered by the handler of their topic, in threads of NVFlare.
    Letters are taken from the server's process of their job only, and questions for the outcome from this
    site's process of the job only. If a request is refused or its handler fails, the sender learns that there
    is no answer, and the log here says why. `simulated`: in NVFlare's simulator, whose server has one process
    for everything."""

    def sender(topic: str, job: str) -> str:
        if topic == LETTER and simulated:
            return str(FQCN.ROOT_SERVER)
        return str(FQCN.join([FQCN.ROOT_SERVER if topic == LETTER else cell.get_fqcn(), job]))

    def serve(topic: str, request: Any) -> Any:
        try:
            job, content = _parse(request, topic, sender)
        except BadRequest as error:
            return _no_answer(ReturnCode.INVALID_REQUEST, error)
        try:
            reply = handlers[topic](job, content)
        except SecaggError as error:
            return _no_answer(ReturnCode.PROCESS_EXCEPTION, error)
        except Exception:
            logging.getLogger(__name__).exception("no answer")
            return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.PROCESS_EXCEPTION}, None)
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, reply)

    for topic in handlers:
        cell.register_request_cb(
            channel=CHANNEL, topic=topic, cb=lambda request, topic=topic: serve(topic, request)
        )


def letter_bytes(content: object) -> bytes | None:
    """Return the bytes of what should be a letter, or None if it is of another type, or longer than any.
    NVFlare hands out large contents as views of its buffers."""
    if not isinstance(content, bytes | bytearray | memoryview):
        return None
    return bytes(content) if memoryview(content).nbytes <= LONGEST_LETTER else None


def _no_answer(code: str, error: SecaggError) -> Any:
    logging.getLogger(__name__).warning("no answer: %s", error)
    return new_cell_message({MessageHeaderKey.RETURN_CODE: code}, None)


def _parse(request: Any, topic: str, sender: Callable[[str, str], str]) -> tuple[str, bytes]:
    """Return the job that a request is about, and its content. Raise `BadRequest` if it has another form, or
    comes from another cell than `sender` returns for its topic and job."""
    job, origin = request.get_header(JOB), request.get_header(MessageHeaderKey.ORIGIN)
    if not isinstance(job, str) or not _JOB_NAME.fullmatch(job):
        raise BadRequest(f"a request from the cell {shown(origin)} names no job")
    expected = sender(topic, job)
    if origin != expected:
        raise BadRequest(f"a request comes from the cell {shown(origin)}, and only {expected} may send it")
    if topic != LETTER:
        return job, b""
    content = letter_bytes(request.payload)
    if content is None:
        raise BadRequest(f"{expected} has sent something that is no letter, or is too long for one")
    return job, content

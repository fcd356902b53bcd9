"""A SuperLink for one node, with the Fleet API of the installed Flower. It can be hostile."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as messages
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.inflatable import inflatable_object as objects

from sims.engines.flower import LETTER, MESSAGE_TYPE, RECORD

RUN = 5
DIVIDER = b"\x00"


@dataclass
class Parcel:
    """A message as the SuperLink has it: its header, the tree of its objects, and their contents."""

    header: Any
    tree: Any
    contents: dict[str, bytes]

    @classmethod
    def of(cls, content: RecordDict, *, run: int = RUN, kind: str = MESSAGE_TYPE) -> Parcel:
        metadata = Metadata(
            run_id=run,
            message_id="",
            src_node_id=1,
            dst_node_id=7,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=300.0,
            message_type=kind,
        )
        message = Message(metadata=metadata, content=content)
        metadata.__dict__["_message_id"] = message.object_id
        contents = {name: each.deflate() for name, each in objects.get_all_nested_objects(message).items()}
        tree = objects.get_object_tree(message)
        return cls(message_to_proto(remove_content_from_message(message)), tree, contents)

    @classmethod
    def of_letter(cls, letter: bytes, *, run: int = RUN) -> Parcel:
        return cls.of(RecordDict({RECORD: ConfigRecord({LETTER: letter})}), run=run)

    def with_body(self, kind: bytes, body: bytes) -> Parcel:
        """The same, in which the object of this kind has another body."""
        for name, content in self.contents.items():
            if content.startswith(kind):
                self.contents[name] = content.split(DIVIDER, 1)[0] + DIVIDER + body
        return self


@dataclass
class Answer:
    """What is sent in place of an answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None  # of the body, as the header says
    pause: float | None = None  # seconds before each of its bytes


@dataclass
class FakeSuperLink:
    """`parcels` are what its node finds. `answers` are sent in place of the true ones, by the last part of
    the path, and before them those `once`, one after another."""

    parcels: list[Parcel] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    once: dict[str, list[Answer]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    pushed: dict[str, bytes] = field(default_factory=dict)
    sent: int = 0  # bytes of bodies
    address: str = ""

    def answer(self, path: str, content: bytes) -> Any:
        name = path.rsplit("/", 1)[-1]
        match name:
            case "register-node":
                return fleet.RegisterNodeFleetResponse(node_id=7)
            case "activate-node":
                return fleet.ActivateNodeResponse(node_id=7)
            case "deactivate-node":
                return fleet.DeactivateNodeResponse()
            case "send-node-heartbeat":
                return SendNodeHeartbeatResponse(success=True)
            case "pull-messages":
                return self._next()
            case "pull-object":
                return self._object(messages.PullObjectRequest.FromString(content).object_id)
            case "confirm-message-received":
                return messages.ConfirmMessageReceivedResponse()
            case "push-messages":
                request = fleet.PushMessagesRequest.FromString(content)
                trees = request.message_object_trees
                names = [each.object_id for tree in trees for each in objects.iterate_object_tree(tree)]
                return fleet.PushMessagesResponse(objects_to_push=names, session_id="session")
            case "push-object":
                pushed = messages.PushObjectRequest.FromString(content)
                self.pushed[pushed.object_id] = pushed.object_content
                return messages.PushObjectResponse(stored=True)
            case _:
                raise ValueError(path)

    def _next(self) -> Any:
        if not self.parcels:
            return fleet.PullMessagesResponse()
        self._current = self.parcels.pop(0)
        trees = [] if self._current.tree is None else [self._current.tree]
        return fleet.PullMessagesResponse(messages_list=[self._current.header], message_object_trees=trees)

    def _object(self, name: str) -> Any:
        content = self._current.contents.get(name)
        return messages.PullObjectResponse(
            object_found=content is not None, object_available=content is not None, object_content=content
        )

    def other_answer(self, path: str) -> Answer | None:
        """Return what is sent in place of the true answer, if anything is."""
        name = path.rsplit("/", 1)[-1]
        return self.once[name].pop(0) if self.once.get(name) else self.answers.get(name)

    def count(self, call: str) -> int:
        """Return how often the node has made this call."""
        return sum(path.endswith(f"/{call}") for path in self.paths)

    def letters(self) -> list[bytes]:
        """Return the letters in what the node has pushed."""
        contents = self.pushed.values()
        records = [each for each in contents if each.startswith(b"ConfigRecord")]
        return [bytes(ConfigRecord.inflate(each)[LETTER]) for each in records]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, link: FakeSuperLink, *args: Any) -> None:
        self.link = link
        super().__init__(*args)

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.link.paths.append(self.path)
        answer = self.link.other_answer(self.path)
        if answer is None:
            answer = Answer(body=self.link.answer(self.path, content).SerializeToString())
        with suppress(OSError):  # the node hangs up
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        length = len(answer.body) if answer.length is None else answer.length
        for name, value in {"content-length": str(length), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        chunk = 1 if answer.pause else 1 << 16
        for place in range(0, length, chunk):
            if answer.pause:
                time.sleep(answer.pause)
            body = answer.body[place : place + chunk] or bytes(min(chunk, length - place))
            self.wfile.write(body)
            self.link.sent += len(body)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """A node that refuses our certificate is no error of this server."""


@contextmanager
def fake_superlink(context: ssl.SSLContext | None = None) -> Iterator[FakeSuperLink]:
    """Run a SuperLink during the block, with TLS if there is a `context`."""
    link = FakeSuperLink()
    server = _Server(("127.0.0.1", 0), partial(_Handler, link))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    server.block_on_close = False
    link.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield link
    finally:
        server.shutdown()
        server.server_close()

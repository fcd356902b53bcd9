"""The calls of Flower's Fleet API that a node needs. No other module uses Flower's internal API.

A message of Flower is a tree of objects: the message, its RecordDict, and its records. The SuperLink sends
the tree, and the node pulls the objects. Only messages with one ConfigRecord are read. Nothing of a message
is executed, and no app (FAB) is ever fetched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_utils as store
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from secagg.errors import SecaggError
from sims.engines.flower import LETTER, MESSAGE_TYPE, RECORD
from sims.engines.flower.bounded_http import PATIENCE, BoundedHttp, explained

# Seconds. The SuperLink takes a node for offline after twice this time without a sign, and only then accepts
# a new process of the node.
HEARTBEAT: Final = 10.0  # the least that it accepts
_SOON: Final = 0.05  # seconds after which objects that are not there yet are asked for again
_LONGEST: Final = 1.0
_ARRIVAL: Final = 60.0  # seconds for the objects of a message to arrive
_TYPES: Final = ("Message", "RecordDict", "ConfigRecord")

T = TypeVar("T")


class FleetError(SecaggError):
    """A call to the SuperLink failed. `status` is that of its HTTP response, or 0 if there is none."""

    def __init__(self, why: str, *, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class FleetMessage:
    """A message of a run that a node has received, and the letter in it; None if it is not one of ours."""

    run: int
    header: Any = field(repr=False)
    letter: bytes | None = field(repr=False)


class FleetApi:
    """A connection of a node to a SuperLink at `address`, over TLS unless `insecure`. The node authenticates
    with `key`; without one, it registers a new key by itself, which a SuperLink with node authentication
    refuses. All calls block, may be made by several threads, and raise `FleetError`, whatever the SuperLink
    sends. A response may take `patience` seconds."""

    def __init__(
        self,
        address: str,
        *,
        insecure: bool = False,
        root_certificates: bytes | None = None,
        key: EllipticCurvePrivateKey | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._registers = key is None
        private = generate_key_pairs()[0] if key is None else key
        self._public = public_key_to_bytes(private.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            insecure,
            root_certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
                BoundedHttp(lambda: self._client._client, patience=patience),
            ],
        )
        self._node = Node()

    def activate(self) -> int:
        """Become a node that is online, and return its id."""
        if self._registers:
            _checked(self._client.RegisterNode, fleet.RegisterNodeFleetRequest(public_key=self._public))
            self._registers = False
        request = fleet.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self._node = Node(node_id=_checked(self._client.ActivateNode, request).node_id)
        return int(self._node.node_id)

    def deactivate(self) -> None:
        _checked(self._client.DeactivateNode, fleet.DeactivateNodeRequest(node_id=self._node.node_id))

    def heartbeat(self) -> bool:
        """Be online for longer, or again. Return False if the SuperLink does not know this node."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        return bool(_checked(self._client.SendNodeHeartbeat, request).success)

    def pull(self) -> FleetMessage | None:
        """Return the next message, with all of its content; None if there is none."""
        found = _checked(self._client.PullMessages, fleet.PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        with _own_protocol():
            header, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
            run, message_id = int(header.metadata.run_id), str(header.metadata.message_id)
            # A letter has three objects. Others are not pulled.
            names = [each.object_id for each in islice(objects.iterate_object_tree(tree), len(_TYPES) + 1)]
        contents = self._pulled(names, run) if len(names) == len(_TYPES) else {}
        if contents is None:
            return None
        confirm = partial(_checked, self._client.ConfirmMessageReceived)
        make_confirm_message_received_fn_protobuf(confirm, self._node, run)(message_id)
        return FleetMessage(run, header, letter_in(header, message_id, contents))

    def _pulled(self, names: list[str], run: int) -> dict[str, bytes] | None:
        """Return the objects with these names; None if the sender does not send them all. This thread pulls
        them one by one: those of Flower's own functions would delay the end of the process."""
        pull = make_pull_object_fn_protobuf(partial(_checked, self._client.PullObject), self._node, run)
        until = time.monotonic() + _ARRIVAL
        try:
            return {name: _when_there(pull, name, until) for name in names}
        except (store.ObjectPullError, store.ObjectUnavailableError):
            return None

    def reply(self, message: FleetMessage, letter: bytes) -> None:
        with _own_protocol():
            content = RecordDict({RECORD: ConfigRecord({LETTER: letter})})
            reply = Message(content, reply_to=message.header)
            with objects.no_object_id_recompute():
                reply.metadata.__dict__["_message_id"] = reply.object_id
                tree = objects.get_object_tree(reply)
                nested = objects.get_all_nested_objects(reply)
                request = fleet.PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                )
                deflated = {name: each.deflate() for name, each in nested.items()}
        answer = _checked(self._client.PushMessages, request)
        wanted = set(answer.objects_to_push)
        push = make_push_object_fn_protobuf(
            partial(_checked, self._client.PushObject), self._node, message.run, answer.session_id
        )
        try:
            for name in deflated.keys() & wanted:
                push(name, deflated[name])
        except store.ObjectPushError as error:
            raise FleetError(f"the SuperLink does not take a reply: {error}") from None

    def close(self) -> None:
        self._client.close()


def letter_in(header: Message, message_id: str, contents: dict[str, bytes]) -> bytes | None:
    """Return the letter in the objects of a message; None if it is another kind of message, or has objects
    that a letter does not need."""
    if header.metadata.message_type != MESSAGE_TYPE:
        return None
    try:
        if sorted(map(objects.get_object_type_from_object_content, contents.values())) != sorted(_TYPES):
            return None
        message: Any = store.inflate_object_from_contents(message_id, contents)
        letter = message.content[RECORD][LETTER]
    except Exception:  # Flower's readers raise many kinds of errors.
        return None
    return letter if isinstance(letter, bytes) else None


def _when_there(pull: Callable[[str], bytes], name: str, until: float) -> bytes:
    """Return an object. Ask again while it is not there, for as long as `until` is to come."""
    pause = _SOON
    while True:
        try:
            return pull(name)
        except store.ObjectUnavailableError:
            if time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


@contextmanager
def _own_protocol() -> Iterator[None]:
    """Raise `FleetError` if Flower's functions cannot handle what the SuperLink has sent."""
    try:
        yield
    except httpx.HTTPError:
        raise
    except Exception as error:
        raise FleetError(
            f"the SuperLink does not answer according to its protocol ({type(error).__name__})"
        ) from None


def _checked(call: Callable[[Any], T], request: Any) -> T:
    """Return what a call to the SuperLink returns. Raise `FleetError` if it fails."""
    try:
        with _own_protocol():
            return call(request)
    except httpx.HTTPError as error:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
        raise FleetError(explained(error), status=status) from None

"""A node of our own: the Fleet API of the installed Flower, hostile SuperLinks, and mistakes of operators."""

from __future__ import annotations

import datetime as dt
import gzip
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("flwr", reason="Flower is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from flwr.app import ConfigRecord, RecordDict

from secagg.net.event_log import EventLog
from secagg.net.settings import Address
from sims.config_problems import ConfigError
from sims.engines.flower import LETTER, RECORD, fleet_node
from sims.engines.flower.fleet_api import FleetApi, FleetError, FleetMessage
from sims.engines.flower.fleet_node import FleetNode, read_node_settings
from sims.engines.versions import check_flower
from tests.engines.fake_superlink import RUN, Answer, FakeSuperLink, Parcel, fake_superlink

HERE = Address("127.0.0.1", 9092)
LONG = 200_000_000  # bytes: more than any response of a SuperLink


@pytest.fixture
def link() -> Iterator[FakeSuperLink]:
    with fake_superlink() as opened:
        yield opened


@pytest.fixture
def api(link: FakeSuperLink) -> Iterator[FleetApi]:
    """A node that is online. An answer may take it a second."""
    opened = FleetApi(link.address, insecure=True, patience=1.0)
    assert opened.activate() == 7
    yield opened
    opened.close()


# --- the Fleet API ---


def test_a_letter_is_pulled_and_its_reply_is_pushed(link: FakeSuperLink, api: FleetApi) -> None:
    letter, reply = os.urandom(3_000_000), os.urandom(2_000_000)
    link.parcels = [Parcel.of_letter(letter)]
    assert api.heartbeat()
    message = api.pull()
    assert message is not None
    assert (message.run, message.letter) == (RUN, letter)
    assert "confirm-message-received" in link.paths[-1]
    api.reply(message, reply)
    assert link.letters() == [reply]
    assert len(link.pushed) == 3
    assert api.pull() is None
    api.deactivate()


def test_nothing_of_an_app_is_fetched(link: FakeSuperLink, api: FleetApi) -> None:
    link.parcels = [Parcel.of_letter(b"letter")]
    assert api.pull() is not None
    assert not any("fab" in path or "run" in path for path in link.paths)


@pytest.mark.parametrize(
    "parcel",
    [
        Parcel.of(RecordDict({RECORD: ConfigRecord({LETTER: b"letter"})}), kind="train.secagg"),
        Parcel.of(RecordDict({RECORD: ConfigRecord({LETTER: "letter"})})),
        Parcel.of(RecordDict({RECORD: ConfigRecord({"other": b"letter"})})),
        Parcel.of(RecordDict({"other": ConfigRecord({LETTER: b"letter"})})),
        Parcel.of(RecordDict({RECORD: ConfigRecord({LETTER: b"a"}), "b": ConfigRecord({LETTER: b"b"})})),
        Parcel.of(RecordDict()),
        Parcel.of_letter(b"letter").with_body(b"ConfigRecord", b"\xff" * 40),
        Parcel.of_letter(b"letter").with_body(b"RecordDict", b"[" * 200_000),
        Parcel.of_letter(b"letter").with_body(b"Message", b"\xff" * 40),
    ],
    ids=["kind", "text", "key", "record", "records", "empty", "garbage", "nested", "message"],
)
def test_other_messages_have_no_letter(link: FakeSuperLink, api: FleetApi, parcel: Parcel) -> None:
    link.parcels = [parcel, Parcel.of_letter(b"the next one")]
    message = api.pull()
    assert message is not None
    assert message.letter is None
    following = api.pull()
    assert following is not None
    assert following.letter == b"the next one"


def test_objects_that_are_not_there_cost_the_message_only(link: FakeSuperLink, api: FleetApi) -> None:
    parcel = Parcel.of_letter(b"letter")
    parcel.contents.clear()
    link.parcels = [parcel]
    assert api.pull() is None


def test_a_large_tree_is_not_pulled(link: FakeSuperLink, api: FleetApi) -> None:
    parcel = Parcel.of_letter(b"letter")
    for _ in range(500):
        parcel.tree.children.add(object_id="0" * 64)
    link.parcels = [parcel]
    message = api.pull()
    assert message is not None
    assert message.letter is None
    assert not any("pull-object" in path for path in link.paths)


# --- hostile answers ---


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("pull-messages", Answer(length=LONG)),
        ("pull-messages", Answer(headers={"content-encoding": "gzip"}, body=gzip.compress(bytes(1 << 24)))),
        ("pull-messages", Answer(body=b"\xff" * 100)),
        ("pull-messages", Answer(status=500, length=LONG)),
        ("pull-messages", Answer(length=1000, pause=0.3)),
        ("pull-object", Answer(length=LONG)),
        ("pull-object", Answer(body=b"\xff" * 100)),
        ("confirm-message-received", Answer(length=LONG)),
    ],
    ids=["long", "packed", "garbage", "long error", "slow", "long object", "garbled object", "long receipt"],
)
def test_a_hostile_answer_is_an_orderly_error(
    link: FakeSuperLink, api: FleetApi, call: str, answer: Answer
) -> None:
    link.parcels = [Parcel.of_letter(b"letter")] * 2
    link.answers[call] = answer
    with pytest.raises(FleetError):
        api.pull()
    assert link.sent < LONG / 4  # the node has hung up
    del link.answers[call]
    assert api.pull() is not None


def test_a_message_without_a_tree_is_an_orderly_error(link: FakeSuperLink, api: FleetApi) -> None:
    parcel = Parcel.of_letter(b"letter")
    parcel.tree = None
    link.parcels = [parcel]
    with pytest.raises(FleetError):
        api.pull()


def test_redirects_are_not_followed(link: FakeSuperLink, api: FleetApi) -> None:
    with fake_superlink() as other:
        target = f"http://{other.address}/internal/delete"
        link.answers["pull-messages"] = Answer(status=307, headers={"location": target})
        with pytest.raises(FleetError) as refused:
            api.pull()
        assert refused.value.status == 307
        assert other.paths == []


def test_hostile_answers_to_a_reply_are_orderly_errors(link: FakeSuperLink, api: FleetApi) -> None:
    link.parcels = [Parcel.of_letter(b"letter")]
    message = api.pull()
    assert message is not None
    for call in ("push-messages", "push-object"):
        link.answers = {call: Answer(body=b"\xff" * 100)}
        with pytest.raises(FleetError):
            api.reply(message, b"reply")
    link.answers = {"push-object": Answer(body=b"")}  # not stored
    with pytest.raises(FleetError, match="does not take a reply"):
        api.reply(message, b"reply")


@pytest.mark.slow
def test_a_node_can_be_stopped_while_the_superlink_drips(link: FakeSuperLink) -> None:
    """A node that waits for the end of each answer would need minutes."""
    drip = Answer(length=1000, pause=4.0)
    for call in ("pull-messages", "push-messages", "deactivate-node"):
        link.answers[call] = drip
    events: list[str] = []
    node = FleetNode(
        FleetApi(link.address, insecure=True),
        EventLog(lambda event, _facts: events.append(event)),
        address=HERE,
    )

    async def stop_soon() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            while "flower node" not in events:  # noqa: ASYNC110  (a list, which trio cannot await)
                await trio.sleep(0.05)
            nursery.start_soon(node._send, FleetMessage(RUN, _header(), b""), b"reply")
            while "/v1/fleet/push-messages" not in link.paths:  # noqa: ASYNC110
                await trio.sleep(0.05)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    assert trio.run(stop_soon) < 3 * fleet_node._LAST


def _header() -> Any:
    from flwr.common.serde import message_from_proto

    return message_from_proto(Parcel.of_letter(b"").header)


# --- two runs at once ---


class LettersApi:
    """Stands in for a Fleet API: what is pulled, and which replies were sent, by run."""

    def __init__(self) -> None:
        self.messages: list[FleetMessage] = []
        self.replies: list[tuple[int, bytes]] = []

    def activate(self) -> int:
        return 7

    def deactivate(self) -> None:
        pass

    def heartbeat(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def pull(self) -> FleetMessage | None:
        return self.messages.pop(0) if self.messages else None

    def reply(self, message: FleetMessage, letter: bytes) -> None:
        self.replies.append((message.run, letter))


def test_a_node_takes_part_in_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_node, "_QUIET", 1.0)
    api, cautions = LettersApi(), list[str]()
    log = EventLog(
        lambda event, facts: cautions.append(str(dict(facts)["reason"])) if event == "caution" else None
    )
    node = FleetNode(api, log, address=HERE)  # type: ignore[arg-type]

    async def answer(letter: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"re " + letter

    node.dialer.answer = answer  # type: ignore[method-assign]

    async def take_all() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            for run, letter in [(1, b"a"), (2, b"b"), (1, b"c")]:
                api.messages.append(FleetMessage(run, None, letter))
                await trio.sleep(0.3)
            assert api.replies == [(1, b"re a"), (1, b"re c")]
            with trio.fail_after(10):
                while len(api.replies) < 3:  # noqa: ASYNC110  (a list, which trio cannot await)
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    trio.run(take_all)
    assert api.replies[2:] == [(2, b"re b")]
    assert len(cautions) == 1
    assert "run 2 has to wait" in cautions[0]


# --- mistakes of operators ---


def why(address: str, **more: Any) -> str:
    api = FleetApi(address, **more)
    with pytest.raises(FleetError) as failed:
        api.activate()
    api.close()
    return str(failed.value)


def test_a_superlink_without_tls_is_named(link: FakeSuperLink) -> None:
    assert "does not speak TLS" in why(link.address)


def certificate(directory: Path, name: str, host: str) -> tuple[ssl.SSLContext, bytes]:
    """Make a certificate for `host`. Return the context of a server that has it, and the certificate."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(s.Encoding.PEM)
    (directory / name).write_bytes(_pem(key) + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / name)
    return context, pem


def test_a_certificate_that_is_not_accepted_is_named(tmp_path: Path) -> None:
    context, pem = certificate(tmp_path, "a.pem", "localhost")
    _, other = certificate(tmp_path, "b.pem", "localhost")
    with fake_superlink(context) as link:
        port = link.address.rpartition(":")[2]
        api = FleetApi(f"localhost:{port}", root_certificates=pem)
        assert api.activate() == 7
        api.close()
        assert "is not accepted" in why(f"localhost:{port}", root_certificates=other)
        assert "is not accepted" in why(f"localhost:{port}")
        assert "name of the host" in why(link.address, root_certificates=pem)
        assert "remove --insecure" in why(link.address, insecure=True)


def test_a_port_of_another_server_is_named(link: FakeSuperLink) -> None:
    link.answers["register-node"] = Answer(status=404)
    assert "check the port" in why(link.address, insecure=True)


def test_a_port_without_a_server_is_named() -> None:
    assert "cannot be reached" in why("127.0.0.1:1", insecure=True)


def _pem(key: Any, form: s.PrivateFormat = s.PrivateFormat.PKCS8, password: bytes | None = None) -> bytes:
    protection = s.BestAvailableEncryption(password) if password else s.NoEncryption()
    return bytes(key.private_bytes(s.Encoding.PEM, form, protection))


def settings(**more: Any) -> Any:
    return read_node_settings(
        HERE, **{"insecure": False, "root_certificates": None, "private_key": None, **more}
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no key",
        _pem(rsa.generate_private_key(65537, 2048)),
        _pem(ec.generate_private_key(ec.SECP384R1()), password=b"password"),
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
    ],
    ids=["empty", "text", "rsa", "encrypted", "garbled"],
)
def test_a_file_without_a_usable_key_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"node\.key"):
        settings(private_key=tmp_path / "node.key")


def test_both_forms_of_a_key_are_read(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    for form in (s.PrivateFormat.PKCS8, s.PrivateFormat.OpenSSH):
        (tmp_path / "node.key").write_bytes(_pem(key, form))
        (tmp_path / "node.key").chmod(0o600)
        found = settings(private_key=tmp_path / "node.key")
        assert found.key.private_numbers() == key.private_numbers()
        assert found.cautions == ()


def test_a_key_that_others_can_read_is_a_caution(tmp_path: Path) -> None:
    (tmp_path / "node.key").write_bytes(_pem(ec.generate_private_key(ec.SECP384R1())))
    (tmp_path / "node.key").chmod(0o644)
    (caution,) = settings(private_key=tmp_path / "node.key").cautions
    assert "chmod 600" in caution


@pytest.mark.parametrize("content", [b"", b"\xff", b"no certificate"])
def test_a_file_without_certificates_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(ConfigError, match=r"ca\.pem: has no certificates"):
        settings(root_certificates=tmp_path / "ca.pem")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    for name in ("root_certificates", "private_key"):
        with pytest.raises(ConfigError, match="missing: cannot be read"):
            settings(**{name: tmp_path / "missing"})


def test_insecure_is_for_this_machine_only() -> None:
    with pytest.raises(ConfigError, match="not on this machine"):
        read_node_settings(
            Address("superlink.example", 9092), insecure=True, root_certificates=None, private_key=None
        )


@pytest.mark.parametrize("other", ["1.40.0", "1.43.0", "2.0.0", "1.4", "1.42.0.dev1", "1.42.0rc1"])
def test_other_versions_of_flower_are_refused(other: str) -> None:
    with pytest.raises(ConfigError, match=other):
        check_flower(other)


def test_the_installed_version_of_flower_is_known() -> None:
    assert check_flower().startswith("1.4")

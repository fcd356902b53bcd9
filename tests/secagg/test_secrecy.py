"""Nothing that can be printed shows a secret: logs and tracebacks are read by others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from secagg import messages as m
from secagg.errors import SecaggError
from secagg.events import Answer, Asked, ClientStep, Outgoing, ServerStep
from secagg.evidence import Evidence, Offence, Signed, Statement
from secagg.hybrid_keys import Encapsulation, KemKey, encapsulate
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import SeededRandom
from secagg.keys import Agreement, Identity
from secagg.local_session import LocalSession, local_machines
from secagg.mask_keystream import KeyStream
from secagg.message_records import Parcel
from secagg.self_and_pair_masks import OneProcess, PairMasks, SelfMask
from secagg.session_params import SessionParams
from secagg.session_secrets import MaskSecrets, Vault
from secagg.share_envelopes import EnvelopeCipher
from secagg.share_tags import RevealedRow
from secagg.sum_spec import LInf, Part, SumSpec
from secagg.sum_unmasking import CheckedRow, Tally
from secagg.topology import CompleteGraph
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig, residue_table
from tests.secagg.dealings import dealing

WINDOW = 6  # consecutive bytes: by chance, text holds the hex digits of none


def forms(secret: bytes) -> Iterator[str]:
    """How six bytes of a secret may show up in text."""
    for start in range(len(secret) - WINDOW + 1):
        piece = secret[start : start + WINDOW]
        yield piece.hex()
        yield repr(piece)[2:-1]
        yield ", ".join(map(str, piece))
    yield str(int.from_bytes(secret, "big"))
    yield str(int.from_bytes(secret, "little"))


def shows(thing: object, *secrets: bytes) -> bool:
    text = f"{thing!r}\n{thing}\n{[thing]}"
    return any(form in text for secret in secrets for form in forms(secret))


class Careless:
    """What these tests are to catch."""

    def __init__(self, secret: Any) -> None:
        self.secret = secret

    def __repr__(self) -> str:
        return f"Careless({self.secret!r})"


SECRET = SeededRandom(b"secrecy")(32)


@pytest.mark.parametrize(
    "leak", [SECRET, SECRET.hex(), list(SECRET), int.from_bytes(SECRET, "big"), SECRET[9:20]]
)
def test_a_careless_object_would_be_caught(leak: Any) -> None:
    assert shows(Careless(leak), SECRET)
    assert not shows(Careless(len(SECRET)), SECRET)


def test_keys_and_vaults() -> None:
    identity = Identity.from_secret(SECRET)
    assert not shows(identity, SECRET)
    assert identity.public.hex() in repr(identity)
    vault = Vault(owner=3, sums=2, random=lambda count: SECRET[:count])
    vault.hold(0, SECRET * 5)
    assert repr(vault) == "Vault(owner=3)"
    for thing in (
        vault,
        Agreement(SECRET),
        KeyStream(SECRET),
        EnvelopeCipher(SECRET, session=bytes(32), owner=1, kem=None, encapsulate=encapsulate),
        KemKey(SECRET * 2),
        MaskSecrets(SECRET, SECRET, {1: SECRET}),
        Statement(1, "lost", (SECRET,), SECRET),
        Evidence(Offence.FALSE_COUNT, 1, SECRET, SECRET, (), (SECRET,)),
        SeededRandom(SECRET),
        Encapsulation(SECRET, b"ciphertext"),
        PairMasks(SECRET, ((b"key", b"info", True, SECRET),)),
        SelfMask(SECRET, b"info"),
        Signed((SECRET,), b"signature"),
        RevealedRow(SECRET, b"hidden"),
        CheckedRow(1, 2, RevealedRow(SECRET, b""), [int.from_bytes(SECRET, "big")]),
    ):
        assert not shows(thing, SECRET)


@pytest.mark.parametrize("kind", [*m.FROM_SERVER, *m.FROM_CLIENT], ids=lambda kind: kind.__name__)
def test_messages(kind: type[m.Message]) -> None:
    values: list[Any] = []
    for field in kind.SCHEMA:
        if isinstance(field, m.Blob):
            values.append((SECRET * 2)[: min(field.lengths[-1], 64)])
        else:
            values.append(1 if isinstance(field, m.Uint) else "kind")
    assert not shows(kind(*values), SECRET)
    assert not shows(kind(*values).encode, SECRET)


def test_records_and_steps() -> None:
    assert not shows(Parcel(1, bytes(32), SECRET, SECRET * 2), SECRET)
    assert not shows(ClientStep((SECRET,)), SECRET)
    assert not shows(ServerStep((Outgoing((1,), SECRET),)), SECRET)
    assert not shows(Answer(SECRET, {"x": 0.5}), SECRET)


def test_an_encoded_input() -> None:
    part = Part(name="x", size=2, bits=64, bound=LInf(1.0))
    encoded = Encoding(SumSpec(parts=(part,)), cohort=2).encode({"x": [0.123, 0.456]}, KeyStream(SECRET))
    residues = [int(value).to_bytes(8, "little") for value in encoded.residues[0]]
    assert not shows(encoded, *residues)


def secrets_of(rig: Rig, member: int) -> list[bytes]:
    """All that a client keeps to itself at this moment."""
    vault = rig.machines[member]._vault
    found = [*vault._mask_keys.values(), *vault._self_masks.values(), rig.identity(member).secret()]
    found += [share for held in vault._held.values() for share in held.values()]
    return [secret for secret in [*found, vault._channel] if secret]


@pytest.mark.parametrize("trust", list(Trust))
def test_machines_their_events_and_their_errors(trust: Trust) -> None:
    rig = Rig(4, trust, sums=2, table=residue_table(kinds=("a", "b")))
    setup = dealing(rig, threshold=3)
    cohort = setup.cohort
    secrets = [secret for member in range(4) for secret in secrets_of(rig, member)]
    assert len(secrets) > 40
    secrets += [vector.tobytes() for vector in rig.vectors.values()]
    payload = b"broadcast model bytes"
    query = rig.query(cohort, 0, range(4), kind="a", payload=payload)
    question = rig.question(cohort, query)
    tally = Tally(question, CompleteGraph(4), setup.dealt, expander=OneProcess())
    things: list[object] = [rig, cohort, question, tally, setup.dealt]
    for member, message in rig.masked(query, range(4)).items():
        things += [message, rig.machines[member], rig.machines[member]._vault]
        tally.add_input(member, message, Signed((b"",), b""))
    for member in range(4):
        things += rig.send(member, rig.survivors(cohort, 0, range(4)))
        things += rig.events[member]
    for thing in things:
        assert not shows(thing, *secrets)
    asked = [event for event in rig.events[0] if isinstance(event, Asked)]
    assert not shows(asked, payload)
    with pytest.raises(SecaggError) as caught:
        rig.machines[0].receive(query)
    assert not shows(caught.value, *secrets)


@pytest.mark.parametrize("trust", list(Trust))
def test_a_local_session(trust: Trust) -> None:
    vectors = np.random.default_rng(5).integers(0, 2**32, (3, 4), dtype=np.uint32)
    table = residue_table(kinds=("a",))
    server, clients = local_machines(
        table=table, params=SessionParams(trust=trust, corrupt=0, dropout=0, sums=1), members=range(3)
    )
    session = LocalSession(server, clients, lambda member, _: {"x": vectors[member]})
    session.open()
    session.ask("a")
    private = [vector.tobytes() for vector in vectors]
    for thing in (session, server, *clients.values(), *session.events):
        assert not shows(thing, *private)
    assert repr(clients[2]) == "ClientMachine(member=2, state=ready)"
    assert repr(server) == "ServerMachine(state=ready, next_sum=1)"

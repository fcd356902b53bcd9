"""Hosts some of the simulated clients in an actor of Ray.

The keys, seeds and masks of the clients' machines are made here and stay here: no reply contains them, and
the actor is neither restarted by Ray nor saved. If it is lost, a new actor gets the clients' states after the
last finished round, as in `sims.runtime.processes`, and its clients draw new signing keys.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from fl.errors import FLError
from protocols.query_encoding import query_content
from secagg import Identity, Registry, Trust
from secagg.client import ClientMachine
from secagg.client_memory import AnswerEntry
from secagg.errors import PeerError, SecaggError, UnchangedValues
from secagg.events import Asked, ClientEvent, Confirmed
from secagg.insecure_seeds import seeded_identity
from secagg.local_session import LocalClients
from sims.records.sum_records import Refusal
from sims.runtime.client_state import SimulatedMemory
from sims.runtime.hosted_clients import (
    BeginRound,
    ClientFailure,
    FinishRound,
    HostedClients,
    RestoreState,
    RoundFinished,
    Values,
)
from sims.runtime.insecure_seed_hooks import client_hooks
from sims.runtime.plain_addition import Addition
from sims.runtime.ray import commands
from sims.runtime.ray.sources import source_digest
from sims.workers.fork_server import describe


class ClientActor:
    """Executes commands of the main process, one call at a time. `sims.runtime.ray.actor_pool` makes it an
    actor."""

    def __init__(self) -> None:
        self._clients: HostedClients[_RecordingMemory]
        self._config: commands.ActorConfig
        self._identities: dict[int, Identity] = {}
        self._machines: LocalClients | None = None  # of the current session
        self._members: tuple[int, ...] = ()  # its clients
        self._replies = commands.Replies()
        self._answers: dict[int, Callable[[], Values | None]] = {}

    def execute(self, commanded: Sequence[commands.ActorCommand], *apart: bytes) -> object:
        """Execute commands in order, and return the reply to the last. `apart` has contents that many
        commands share. An error of a client is the reply, because the exceptions of Ray would hide it."""
        reply: object = None
        try:
            for command in commanded:
                reply = self._execute(command, apart)
        except (FLError, SecaggError) as error:
            return ClientFailure(str(error))
        except Exception as error:  # its text may have a client's data
            return ClientFailure(describe(error))
        return reply

    def _execute(self, command: commands.ActorCommand, apart: Sequence[bytes]) -> object:
        match command:
            case commands.LoadClients():
                return self._load(command)
            case commands.AddAnswers():
                return self._add(command, apart[0])
            case commands.ExchangeFrames():
                return self._exchange(command, apart)
            case FinishRound():
                return self._finish(command)
            case _:
                self._update(command)
                return None

    def _update(self, command: commands.SilentCommand) -> None:
        match command:
            case RestoreState():
                self._clients.restore(command)
            case BeginRound(round_info, alone):
                self._clients.begin_round(round_info.number)
                for member in alone:
                    self._clients.participants[member].open(round_info)
            case commands.DeliverEvent(event, members):
                for member in members:
                    self._clients.runtimes[member].on_event(event)
            case commands.OpenSession():
                self._open(command)
            case commands.EndSession():
                self._end_session()
            case _:
                assert_never(command)

    def _load(self, command: commands.LoadClients) -> commands.ClientsLoaded:
        sys.path[:] = dict.fromkeys((*sys.path, *command.path))
        config: commands.ActorConfig = pickle.loads(command.config)  # noqa: S301  # from this program
        made = config.make(config.shared, config.owned)
        self._config = replace(config, owned={})
        self._clients = HostedClients(config.algorithm, config.trust, made, _RecordingMemory)
        self._clients.restore(command.state)
        if config.trust is Trust.MALICIOUS:
            self._identities = {member: self._identity(member) for member in self._clients.participants}
        keys = {member: identity.public for member, identity in self._identities.items()}
        return commands.ClientsLoaded(os.getpid(), source_digest(), keys)

    def _identity(self, member: int) -> Identity:
        seed = self._config.insecure_seed
        return Identity.generate() if seed is None else seeded_identity(seed, member)

    def _finish(self, command: FinishRound) -> RoundFinished:
        self._clients.announce(command.round_info)
        return self._clients.finished()

    # --- plain sums ---

    def _add(self, command: commands.AddAnswers, payload: bytes) -> commands.AnswersAdded:
        encoded, table = command.encoded, self._clients.algorithm.table
        assert table is not None  # there is a query
        spec = table[encoded.kind]
        asked = Asked(command.sum_index, command.round_number, encoded.kind, payload, spec, encoded.roster)
        addition, refusals = Addition(spec, encoded, self._clients.made.tamper), []
        for member, answer in self._clients.answers(dict.fromkeys(command.members, asked)).items():
            try:
                if (values := answer()) is not None:
                    addition.add(member, values)
            except PeerError as error:
                refusals.append(Refusal.of(member, error))
        return commands.AnswersAdded(addition.partial(), tuple(refusals), tuple(self._clients.silent))

    # --- secure sums ---

    def _open(self, command: commands.OpenSession) -> None:
        self._end_session()
        table, signed = self._clients.algorithm.table, command.policy.trust is Trust.MALICIOUS
        assert table is not None  # there is a session
        registry = Registry(command.version, command.keys) if signed else None
        machines = {
            member: ClientMachine(
                member=member,
                table=table,
                policy=command.policy,
                memory=self._clients.memories[member],
                identity=self._identities.get(member),
                registry=registry,
                content_of=query_content,
                hooks=client_hooks(
                    member,
                    seed=self._config.insecure_seed,
                    number=command.number,
                    tamper=self._clients.made.tamper.get(member),
                ),
            )
            for member in command.members
        }
        self._members = command.members
        self._machines = LocalClients(
            machines, self._answer, listener=self._hear, on_refusal=self._note_refusal
        )

    def _exchange(self, command: commands.ExchangeFrames, apart: Sequence[bytes]) -> commands.Replies:
        machines, asked = self._machines, dict[int, Asked]()
        assert machines is not None  # a session is open
        self._replies = replies = commands.Replies()
        for member, frame in command.frames:
            if not machines.has_left(member):
                content = apart[frame] if isinstance(frame, int) else frame
                replies.frames.extend((member, each) for each in machines.receive(member, content, asked))
        self._answers = dict(self._clients.answers(asked))
        for member, each in asked.items():
            replies.frames.extend((member, frame) for frame in machines.reply(member, each))
            memory = self._clients.memories[member]
            replies.answered.extend((member, entry) for entry in memory.take_new())
        replies.left.extend(member for member in self._members if machines.has_left(member))
        replies.silent.extend(self._clients.silent)
        return replies

    def _answer(self, member: int, _asked: Asked) -> Values | None:
        return self._answers.pop(member)()

    def _hear(self, member: int, event: ClientEvent) -> None:
        if isinstance(event, Confirmed):
            self._replies.confirmed.append(member)
        self._clients.runtimes[member].on_event(event)

    def _note_refusal(self, member: int, error: PeerError) -> None:
        if not isinstance(error, UnchangedValues):  # such a client declines, and stays
            self._replies.refusals.append(Refusal.of(member, error))

    def _end_session(self) -> None:
        if self._machines is not None:
            self._machines.leave()
            self._machines = None


class _RecordingMemory(SimulatedMemory):
    """A client's memory that also lists new answers, for the main process: they are sent with the frames, so
    that no answer that reached the server is forgotten if the actor is killed."""

    def __init__(self, _member: int) -> None:
        super().__init__()
        self._new: list[AnswerEntry] = []

    def take_answer(self, answer: AnswerEntry) -> None:
        super().take_answer(answer)
        self._new.append(replace(answer, facts=None))

    def take_new(self) -> list[AnswerEntry]:
        """Return the answers since the last call."""
        new, self._new = self._new, []
        return new

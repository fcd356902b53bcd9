"""Trials: sessions with drawn settings, in which drawn clients tell drawn lies. Everything depends on a seed.

`run_trial(seed)` plays a session of several sums, and then the next one, without those who were convicted or
in a dispute. It raises `AssertionError`, which names the seed, if an honest client was convicted, or excluded
without a liar; if a total is not the sum of its contributors' inputs; if a lie made a sum fail and no liar
was removed; or if evidence does not hold, or holds against an honest client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import sqrt
from random import Random
from typing import Any, Final

import numpy as np
import pytest

from secagg import errors
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.events import Convicted, Excluded
from secagg.evidence import Evidence
from secagg.evidence_examiner import examine
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.identity_registry import Registry
from secagg.insecure_seeds import (
    insecure_client_hooks,
    insecure_server_hooks,
    seeded_identity,
    seeded_registry,
)
from secagg.local_session import LocalSession, Stage
from secagg.message_records import Advert
from secagg.policy import Policy
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table, Total
from secagg.topology import plan
from secagg.trust_levels import Trust
from tests.attacks.attackers.random_liars import ABSENT_REPORT, KINDS, PLAIN, Lie, RandomLiar
from tests.secagg.noisy import Witness, same
from tests.verifier_evidence import SumShape, verify_evidence
from tests.verifier_tools import Rejected

KIND: Final = "sum"
SIZE, LIMIT, BITS = 3, 1 << 10, 40
NOBODY: Final = 1000  # an id that no client has
WORD_BYTES: Final = 8  # of key stream for each element
SUMS: Final = 3
SCALE, VARIANCE = 4, Fraction(50_000)
# Only the server can judge what it delivered: these have no evidence.
UNPROVEN: Final = (errors.UnreadableShares, errors.FalseReport)
BY_A_LIE: Final = (errors.Disputed, errors.CorruptTotal, errors.Unrecoverable)
SET_UP: Final = (Stage.ADVERTISE, Stage.SHARE, Stage.DEPOSIT)


# --- settings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What a trial is about, drawn from its seed."""

    seed: int
    members: tuple[int, ...]
    liars: tuple[int, ...]
    noise: bool
    params: SessionParams

    @classmethod
    def draw(cls, seed: int, rng: Random) -> Settings:
        size = rng.randint(5, 16)
        trust = rng.choice(list(Trust))
        corrupt = rng.randint(1, max(1, size // rng.choice([3, 4, 5])))
        spare = size - trust.least_threshold(size, corrupt=corrupt)
        dropped = rng.randint(0, min(spare, size // 4))
        params = SessionParams(
            trust=trust,
            corrupt=corrupt,
            sums=SUMS,
            dropout=Fraction(dropped, size),
            max_cohort=size,
            graph=_graph(size, trust, corrupt, Fraction(dropped, size), rng),
            key_agreement=rng.choice(list(KeyAgreement)),
            name_members=rng.random() < 0.5,
        )
        members = tuple(sorted(rng.sample(range(1, NOBODY), size)))
        liars = tuple(rng.sample(members, rng.randint(1, corrupt)))
        return cls(seed, members, liars, rng.random() < 0.4, params)

    @property
    def honest(self) -> frozenset[int]:
        return frozenset(self.members) - set(self.liars)

    @property
    def scale(self) -> int:
        return SCALE if self.noise else 1

    def deviation(self, roster: int) -> float:
        """The standard deviation of a total over `roster` clients, if all their noise stays."""
        promise = self.table[KIND].promise
        if promise is None:
            return 0.0
        kept = float(VARIANCE) / (roster - promise.dropouts - promise.colluders)
        return sqrt(roster * kept) / SCALE

    @cached_property
    def table(self) -> Table:
        part = Part(name="x", size=SIZE, bits=BITS, bound=Count(LIMIT))
        if not self.noise:
            return Table({KIND: SumSpec(parts=(part,))})
        size, corrupt = len(self.members), self.params.corrupt
        dropped = max(1, int(self.params.dropout * size))
        promise = NoiseAssumptions(
            clients=size,
            dropouts=min(dropped, size - corrupt - 1),
            colluders=corrupt,
            removable=self.seed % 4 > 0,
        )
        noisy = replace(part, noise=Noise(scale=SCALE, variance=VARIANCE))
        return Table({KIND: SumSpec(parts=(noisy,), promise=promise)})


def _graph(size: int, trust: Trust, corrupt: int, dropout: Fraction, rng: Random) -> GraphChoice:
    """A ring, if it may be one, or the complete graph."""
    ring = GraphChoice.RING
    if trust is Trust.CURIOUS and rng.random() < 0.6:
        with suppress(errors.ParameterError):
            plan(size, SessionParams(trust=trust, corrupt=corrupt, dropout=dropout, graph=ring))
            return ring
    return GraphChoice.COMPLETE


def draw_lies(settings: Settings, rng: Random) -> dict[int, tuple[Lie, ...]]:
    """One lie of every liar, or two. Sometimes all tell the same one, about the same clients."""
    if rng.random() < 0.3:
        common = _lie(settings, rng)
        return {liar: (_told_by(liar, common),) for liar in settings.liars}
    return {
        liar: tuple(_told_by(liar, _lie(settings, rng)) for _ in range(1 if rng.random() < 0.75 else 2))
        for liar in settings.liars
    }


def _told_by(liar: int, lie: Lie) -> Lie:
    """Nobody lies about itself: without another target, the lie is about nobody."""
    return replace(lie, targets=lie.targets - {liar} or frozenset([NOBODY]))


def _lie(settings: Settings, rng: Random) -> Lie:
    hybrid = settings.params.key_agreement is KeyAgreement.HYBRID
    signed = settings.params.trust is Trust.MALICIOUS
    kinds = [kind for kind in KINDS if hybrid or not ("deposit" in kind or "KEM" in kind)]
    kinds = [kind for kind in kinds if signed or kind not in ("other survivors", "unsigned confirmation")]
    (kind,) = rng.choices(kinds, [1 if kind in PLAIN else 3 for kind in kinds])
    corrupt, members = settings.params.corrupt, settings.members
    targets = rng.sample(members, min(rng.choice([1, 1, corrupt, corrupt + 1, corrupt + 2]), len(members)))
    if rng.random() < 0.2:
        targets = list(members)
    sums = rng.sample(range(SUMS), rng.randint(1, SUMS))
    return Lie(kind, frozenset(targets), frozenset(sums), rng.getrandbits(16))


Absences = set[tuple[int, Stage, int]]


def draw_absences(settings: Settings, lies: Mapping[int, tuple[Lie, ...]], rng: Random) -> Absences:
    """Some drop out, liars more often. Some lies do not show unless the liar drops out, or its targets do."""
    found: Absences = set()
    usual = rng.choice([0, 0.02, 0.08])
    for member in settings.members:
        rate = 2 * usual if member in settings.liars else usual
        found |= {
            (member, stage, k)
            for stage in Stage
            for k in ([-1] if stage in SET_UP else range(SUMS))
            if rng.random() < (rate / 3 if stage in SET_UP else rate)
        }
    for liar, told in lies.items():
        lie = told[0]
        targets = sorted(lie.targets) if len(lie.targets) <= 2 else []
        needed = {"false deposit": [liar], "false words": targets}
        absent = rng.choice([[], needed[lie.kind]] if lie.kind in needed else [[], [liar], targets])
        found |= {(member, Stage.MASK, min(lie.sums)) for member in absent}
        if lie.kind == ABSENT_REPORT:
            found.add((rng.choice(settings.members), Stage.SHARE, -1))
    return found


# --- sessions --------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What happened in trials. They can be added up."""

    counts: Counter[str] = field(default_factory=Counter)
    shown: Counter[tuple[str, str]] = field(default_factory=Counter)  # (lie, what the liar was removed for)
    convictions: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    offences: Counter[str] = field(default_factory=Counter)  # of which there is evidence

    def add(self, other: Figures) -> None:
        for name, counter in vars(self).items():
            counter.update(getattr(other, name))


class Trial:
    """A world of clients with identities and memories, and one or two sessions."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.settings = Settings.draw(seed, self.rng)
        self.table = self.settings.table
        self.figures = Figures()
        self.key = b"trial %d" % seed
        signed = self.settings.params.trust is Trust.MALICIOUS
        self.registry: Registry | None = seeded_registry(self.key, self.settings.members) if signed else None
        self.memories = {k: VolatileMemory() for k in self.settings.members}
        self.barred: set[int] = set()
        self.heard: tuple[Advert, ...] = ()
        self.rounds = 0

    def run(self) -> Figures:
        params, counts = self.settings.params, self.figures.counts
        counts["liars"] += len(self.settings.liars)
        noise = "with noise" if self.settings.noise else "without noise"
        counts.update(f"trials: {each}" for each in (params.trust, params.graph, params.key_agreement, noise))
        for number in range(2):
            with pytest.MonkeyPatch.context() as patch:
                Session(self, number, Witness(patch)).run()
        assert len(self.barred & self.settings.honest) <= len(self.barred - self.settings.honest)
        return self.figures

    def client(self, member: int, number: int, kind: type[ClientMachine]) -> Any:
        params = self.settings.params
        policy = Policy(
            trust=params.trust,
            corrupt=params.corrupt,
            min_cohort=params.min_cohort,
            max_cohort=params.max_cohort,
            min_contributors=params.min_contributors,
            max_sums=SUMS,
            unnoised_sums=2 * SUMS,
            key_agreement=params.key_agreement,
        )
        return kind(
            member=member,
            table=self.table,
            policy=policy,
            memory=self.memories[member],
            identity=seeded_identity(self.key, member) if self.registry else None,
            registry=self.registry,
            hooks=insecure_client_hooks(self.key + b" %d" % number, member),
        )


class Session:
    """One session of a trial. Whoever was barred in an earlier one comes, and is turned away."""

    def __init__(self, trial: Trial, number: int, witness: Witness) -> None:
        self.trial, self.settings, self.figures = trial, trial.settings, trial.figures
        self.witness = witness
        self.barred = frozenset(trial.barred)
        lies = draw_lies(self.settings, trial.rng)
        absences = draw_absences(self.settings, lies, trial.rng)
        self.server = ServerMachine(
            table=trial.table,
            params=self.settings.params,
            registry=trial.registry,
            barred=self.barred,
            hooks=insecure_server_hooks(trial.key + b" %d" % number),
        )
        honest, liars = self.settings.honest, self.settings.liars
        self.liars: dict[int, RandomLiar] = {k: trial.client(k, number, RandomLiar) for k in liars}
        for member, liar in self.liars.items():
            liar.prepare(lies[member], trial.heard)
        clients = {k: trial.client(k, number, ClientMachine) for k in honest} | self.liars
        self.session = LocalSession(
            self.server,
            {k: clients[k] for k in self.settings.members},
            lambda member, _: {"x": values_of(member)},
            absent=lambda *event: event in absences,
        )
        self.judge = Judge(trial, self.session, self.liars)

    def run(self) -> None:
        self.figures.counts["sessions"] += 1
        try:
            self.session.open()
        except errors.TooFewClients:
            self.figures.counts["sessions that failed in set-up"] += 1
            self.judge.check_removals(None, in_set_up=True)
        else:
            self.judge.check_removals(None, in_set_up=True)
            self.witness.look(self.session._clients)
            for _ in range(SUMS):
                self._ask()
            self.trial.heard = self.server._cohort.adverts
        self.session.end()
        self._count_lies()

    def _ask(self) -> None:
        self.trial.rounds += 1
        index, error = self.server.sums_asked, None
        try:
            total = self.session.ask(KIND, b"%d" % self.trial.rounds, round_number=self.trial.rounds)
        except errors.SumFailed as failure:
            error = failure
            self.figures.failures[type(error).__name__] += 1
        else:
            self.figures.counts["sums released"] += 1
            self._check_total(index, total)
        self.judge.check_removals(error, in_set_up=False)

    def _check_total(self, index: int, total: Total) -> None:
        """The total is the sum of its contributors' inputs, less surplus noise, bit for bit. It is close to
        that of the plain values: twelve standard deviations of the noise have a chance of 1e-30."""
        contributors, question = self.session.contributors, self.witness.questions[index]
        assert len(contributors) >= self.settings.params.min_contributors
        layers = question.surplus(len(contributors))
        residues = self.witness.residues(index, contributors, layers)
        shift = sum(self.liars[k].shifts.get(index, 0) for k in self.liars.keys() & set(contributors))
        residues[0][:1] += np.uint64(shift)
        expected = question.encoding.decode(
            residues, contributors=len(contributors), invited=len(question.roster)
        )
        assert same(total.parts, expected.parts), f"sum {index} is not that of its contributors' inputs"
        plain = sum((values_of(k) for k in contributors), np.zeros(SIZE))
        plain[0] += shift / self.settings.scale
        far = 12 * self.settings.deviation(len(question.roster))
        assert np.all(np.abs(total["x"] - plain) <= far), f"sum {index} is far from that of plain values"

    def _count_lies(self) -> None:
        """Which lies were told, and by liars that told one only, what came of it."""
        removed = dict(self.judge.removed)
        for member, liar in self.liars.items():
            if member in self.barred:
                continue
            self.figures.counts["lies told"] += len(liar.told)
            if len(liar.told) == 1:
                (lie,) = liar.told
                error = removed.get(member)
                self.figures.shown[lie.kind, type(error).__name__ if error else "nothing"] += 1


def values_of(member: int) -> Any:
    return np.arange(SIZE) + member % 100


# --- verdicts --------------------------------------------------------------------------------------


class Judge:
    """Checks whom a server removes from a session, and the evidence that it keeps."""

    def __init__(self, trial: Trial, session: LocalSession, liars: Mapping[int, RandomLiar]) -> None:
        self.trial, self.settings, self.figures = trial, trial.settings, trial.figures
        self.session, self.liars = session, liars
        self.barred = frozenset(trial.barred)
        self.removed: dict[int, errors.PeerError] = {}
        self._seen = 0  # events

    def check_removals(self, error: errors.SumFailed | None, *, in_set_up: bool) -> None:
        """Check all that happened since the last call, after a sum that failed with `error`, or did not."""
        fresh, self._seen = self.session.events[self._seen :], len(self.session.events)
        gone = {event.peer: event.error for event in fresh if isinstance(event, Excluded)}
        for event in fresh:
            if isinstance(event, Convicted):
                self._check_conviction(event, error, in_set_up=in_set_up)
                assert gone[event.peer] is event.error
        for peer, why in gone.items():
            if peer in self.settings.honest:
                self._check_honest(peer, why, gone)
            elif isinstance(why, errors.Dispute):
                self.trial.barred.add(peer)
                self.figures.counts["liars excluded by a dispute"] += 1
        if isinstance(error, BY_A_LIE):
            removed = [gone[k] for k in gone.keys() & self.liars.keys()]
            assert any(isinstance(why, errors.Lie | errors.Dispute) for why in removed), "no liar was removed"
        self.removed |= gone

    def _check_honest(self, peer: int, why: errors.PeerError, gone: Mapping[int, errors.PeerError]) -> None:
        """An honest client is removed only by a dispute, with a liar that is removed by the same one; or it
        leaves, as too few clients are left for its policy."""
        if isinstance(why, errors.Dispute):
            assert why.other in self.liars, f"two honest clients are in dispute: {peer}, {why.other}"
            assert self.liars[why.other].told
            rival = gone[why.other]
            assert isinstance(rival, errors.Dispute)
            assert rival.other == peer
            self.trial.barred.add(peer)
            self.figures.counts["honest clients excluded by a dispute"] += 1
        elif isinstance(why, errors.Departed):
            assert isinstance(self.session.refusals[peer], errors.FewContributors)
            self.figures.counts["honest clients that left as too few remained"] += 1
        else:
            assert isinstance(why, errors.Barred), f"honest client {peer} was excluded: {why!r}"
            assert peer in self.barred

    def _check_conviction(self, event: Convicted, error: errors.SumFailed | None, *, in_set_up: bool) -> None:
        name = type(event.error).__name__
        assert event.peer in self.liars, f"honest client {event.peer} was convicted: {name}"
        assert self.liars[event.peer].told, f"client {event.peer} was convicted before it lied: {name}"
        self.trial.barred.add(event.peer)
        self.figures.convictions[name] += 1
        unsigned = in_set_up or (isinstance(error, errors.Disputed) and not error.signed)
        unproven = isinstance(event.error, UNPROVEN) or (
            isinstance(event.error, errors.ManyDisputes) and unsigned
        )
        if self.trial.registry is None or unproven:
            assert event.evidence is None
        else:
            assert event.evidence is not None, f"no evidence of {name}"
            self._check_evidence(event.evidence, event.peer)

    def _check_evidence(self, evidence: Evidence, accused: int) -> None:
        """It holds in both examinations, and against no honest client in either."""
        assert evidence.accused == accused
        assert Evidence.decode(evidence.encode()) == evidence
        self._examine(evidence)
        self._verify(evidence)
        self.figures.offences[evidence.offence] += 1
        for honest in sorted(self.settings.honest):
            framed = replace(evidence, accused=honest)
            with pytest.raises(errors.Unproven):
                self._examine(framed)
            with pytest.raises(Rejected):
                self._verify(framed)
            self.figures.counts["re-targeted evidence refused by both"] += 1

    def _examine(self, evidence: Evidence) -> None:
        registry = self.trial.registry
        assert registry is not None
        examine(evidence, registry=registry, table=self.trial.table, corrupt=self.settings.params.corrupt)

    def _verify(self, evidence: Evidence) -> None:
        """By the second implementation, which does not import the package."""
        registry, table = self.trial.registry, self.trial.table
        assert registry is not None
        spec = table[KIND]
        shape = SumShape(count_offset=SIZE * WORD_BYTES, seeds=spec.seeds)
        verify_evidence(
            evidence.encode(),
            registry_keys=registry.members,
            registry_digest=registry.digest,
            specs={spec.digest: shape},
            table_digest=table.digest,
            corrupt=self.settings.params.corrupt,
        )


def run_trial(seed: int) -> Figures:
    """Run one trial. Whatever goes wrong, the error names the seed."""
    try:
        return Trial(seed).run()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error

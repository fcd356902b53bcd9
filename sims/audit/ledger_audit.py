"""Audits a deployment from ledgers alone: the server's, those of clients, or all against each other.

A ledger is a hash chain with a seal. Nobody signs it, so its owner could have written all of it anew: what it
says is consistent at most. But a server's ledger and clients' ledgers are kept by different parties, and say
the same about every sum that both know, or one of them is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from secagg.client_budget import Spend, sum_charge
from secagg.errors import LedgerError, MissingLedger
from secagg.ledger import Owner, Reading, Role, read_ledger
from secagg.ledger import Row as LedgerRow
from secagg.ledger.base_ledger import HAND_OVER
from secagg.noise.zcdp_cost import Adjacency, rho_of
from sims.audit.audit_result import Spent, SumPart
from sims.audit.ledger_files import file_problems, tag_key_problems
from sims.audit.privacy_cost import DELTA, PrivacyAccount
from sims.audit.recorded_sum_spec import spec_of
from sims.audit.released_sums import sigmas, sum_part
from sims.config_problems import ConfigError
from sims.text_format import counted

Key = tuple[str, int]  # (the id of a session, the index of a sum in it)


@dataclass(frozen=True, kw_only=True)
class LedgerSum:
    """One sum in a ledger: that a server asked for, or that a client answered.

    `roster`        how many clients were asked, and `contributors` how many are in the total; None if the
                    server released no total, or if the client does not know.
    `members`       the ids of the clients in the sum, where a rule about sequences of sums needs them.
    `charge`        the cost in units of 2^-40 rho, as the ledger has it; None if a part has no noise.
    `failure`       the name of the error because of which nothing was released, if the ledger has it.
    """

    session: str
    index: int
    round: int
    kind: str
    query: str
    spec: str
    parts: tuple[SumPart, ...]
    sigmas: tuple[float | None, ...]
    roster: int
    cohort: int | None
    contributors: int | None
    members: tuple[int, ...] | None
    charge: int | None
    adjacency: str
    failure: str | None = None

    @property
    def key(self) -> Key:
        return self.session, self.index

    @property
    def rho(self) -> float | None:
        return None if self.charge is None else rho_of(self.charge)

    @property
    def name(self) -> str:
        return f"sum {self.index} of session {self.session[:8]} ({self.kind}, round {self.round})"


@dataclass(frozen=True, kw_only=True)
class KindOfSums:
    """All sums of one kind in a ledger: how many were asked for (or answered) and how many totals came of it,
    in which rounds and over how many clients, and their cost `rho`; None if a part has no noise."""

    kind: str
    asked: int
    released: int
    first_round: int
    last_round: int
    least_contributors: int | None
    most_contributors: int | None
    parts: tuple[SumPart, ...]
    sigmas: tuple[tuple[float, float] | None, ...]  # the smallest and largest of each part; None: no noise
    rho: float | None


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A client that the server excluded or barred from later sessions, or forgave, and why."""

    member: int
    what: str  # "excluded", "barred" or "forgiven"
    why: str


@dataclass(frozen=True, kw_only=True)
class LedgerAudit:
    """What one ledger says, and whether it is as its owner wrote it. `sums` are in the order of the ledger.
    `spent` is the cost for the client that owns the ledger or, in a server's, for a client that was in every
    released sum. Nothing is shown of a ledger that has `problems` of its own file."""

    path: str
    role: str  # "server" or "client"
    member: int | None
    identity: str  # the public key of the owner in hex; empty if it has none
    created: str
    rows: int
    head: str
    sessions: tuple[str, ...]  # their ids
    sums: tuple[LedgerSum, ...]
    kinds: tuple[KindOfSums, ...]
    spent: Spent
    adjacency: str
    departures: tuple[Departure, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def owner(self) -> str:
        return "the server" if self.role == Role.SERVER else f"client {self.member}"


@dataclass(frozen=True, kw_only=True)
class DeploymentAudit:
    """The audit of one or several ledgers of one deployment. `problems` are contradictions between ledgers;
    `compared` is how many sums are in several of them."""

    ledgers: tuple[LedgerAudit, ...]
    delta: float
    compared: int
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def all_problems(self) -> tuple[str, ...]:
        return (*(problem for each in self.ledgers for problem in each.problems), *self.problems)

    @property
    def intact(self) -> bool:
        return not self.all_problems


def audit_ledgers(
    paths: Sequence[Path], *, server_key: bytes | None = None, delta: float | None = None
) -> DeploymentAudit:
    """Return the audit of the ledgers at `paths`: of one server at most, and of different clients.
    `server_key` is the public key that must own the server's. Raise `ConfigError` if a path has no ledger, or
    if the ledgers cannot be of one deployment. A damaged ledger raises no error: it is reported."""
    chosen = DELTA if delta is None else delta
    ledgers = tuple(_audited(path, server_key, chosen) for path in paths)
    known = [each for each in ledgers if each.rows]
    owners = Counter(each.owner for each in known)
    if twice := [owner for owner, often in owners.items() if often > 1]:
        raise ConfigError(f"several ledgers are of {twice[0]}: give one of each party, the newest copy")
    if server_key is not None and all(each.role != Role.SERVER for each in known):
        raise ConfigError("--server-key is for a server's ledger: give that, too, or leave the key out")
    remarks = [] if delta is not None else [f"epsilons are for a delta of {DELTA:g}: --delta names another"]
    compared = sum(often > 1 for often in Counter(s.key for each in known for s in _distinct(each)).values())
    return DeploymentAudit(
        ledgers=ledgers,
        delta=chosen,
        compared=compared,
        problems=tuple(_contradictions(known)),
        remarks=tuple(remarks),
    )


def _distinct(ledger: LedgerAudit) -> list[LedgerSum]:
    return list({each.key: each for each in ledger.sums}.values())


# --- one ledger ---


def _audited(path: Path, server_key: bytes | None, delta: float) -> LedgerAudit:
    problems = list(file_problems(path)) if path.is_file() else []
    try:
        reading = read_ledger(path)
    except MissingLedger:
        raise ConfigError(f"{path} does not exist: give a ledger, or the directory of a run") from None
    except LedgerError as error:
        return _unread(path, [*problems, str(error)])
    try:
        return _described(path, reading, problems, server_key, delta)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{path} has rows that no ledger has: {type(error).__name__}, {error}"
        return _unread(path, [*problems, why])


def _unread(path: Path, problems: Sequence[str]) -> LedgerAudit:
    """Return the audit of a ledger of which nothing can be shown."""
    return LedgerAudit(
        path=str(path),
        role="",
        member=None,
        identity="",
        created="",
        rows=0,
        head="",
        sessions=(),
        sums=(),
        kinds=(),
        spent=Spent(rho=0.0, epsilon=None, unnoised=0),
        adjacency=str(Adjacency.ZERO_OUT),
        departures=(),
        problems=tuple(problems),
        remarks=(),
    )


def _described(
    path: Path, reading: Reading, problems: list[str], server_key: bytes | None, delta: float
) -> LedgerAudit:
    owner, is_server = reading.owner, reading.owner.role is Role.SERVER
    sums = tuple(_of_server(reading.rows) if is_server else _of_client(reading.rows))
    if not is_server:
        problems += tag_key_problems(path, reading)
    problems += _wrong_owner(path, owner, server_key)
    problems += [f"{path}: {each}" for each in _wrong_sums(reading, sums)]
    spend = reading.spend
    return LedgerAudit(
        path=str(path),
        role=str(owner.role),
        member=owner.member,
        identity=owner.identity.hex(),
        created=str(reading.rows[0].body["created"]),
        rows=reading.head.rows,
        head=reading.head.hash.hex(),
        sessions=tuple(row.body["session"] for row in reading.rows if row.body["entry"] == "session"),
        sums=sums,
        kinds=tuple(_kinds(sums)),
        spent=_spent(spend, delta),
        adjacency=str(spend.adjacency),
        departures=tuple(_departures(reading.rows)),
        problems=tuple(problems),
        remarks=tuple(_remarks(path, reading)),
    )


def _spent(spend: Spend, delta: float) -> Spent:
    epsilon = PrivacyAccount(spend.adjacency, delta).epsilon(spend.rho) if spend.noised else None
    return Spent(rho=spend.rho, epsilon=epsilon, unnoised=spend.unnoised, delta=delta)


def _of_server(rows: Sequence[LedgerRow]) -> Iterator[LedgerSum]:
    """Yield the sums that a server asked for. A row about survivors or about the end of a sum belongs to the
    sum that was asked for last."""
    current: LedgerSum | None = None
    asked: Mapping[str, Any] = {}  # the row of `current`
    cohorts: dict[str, int] = {}
    for row in rows:
        body = row.body
        match body["entry"]:
            case "session":
                cohorts[body["session"]] = body["cohort"]
            case "asked":
                if current is not None:
                    yield current
                asked = body
                current = _sum(body, body, body["roster"], cohorts.get(body["session"]))
            case "survivors" if current is not None:
                current = replace(current, members=tuple(body["members"]))
            case "released" if current is not None and _key(body) == current.key:
                count = body["contributors"]
                noise = sigmas(spec_of(asked), current.roster, count)
                current = replace(current, contributors=count, sigmas=noise)
            case "aborted" if current is not None and _key(body) == current.key:
                current = replace(current, failure=body["why"])
            case "failed" if current is not None and current.session == body["session"]:
                current = replace(current, failure=current.failure or body["why"])
    if current is not None:
        yield current


def _of_client(rows: Sequence[LedgerRow]) -> list[LedgerSum]:
    """Return the sums that a client answered."""
    found: dict[Key, LedgerSum] = {}
    specs: dict[Key, Mapping[str, Any]] = {}
    for row in rows:
        body = row.body
        if body["entry"] == "answer" and body["sum"] is not None:
            facts = body["sum"]
            one = _sum(facts, body, facts["roster"], facts["cohort"])
            found[one.key], specs[one.key] = one, facts
        elif body["entry"] == "confirmed" and _key(body) in found:
            key, count = _key(body), body["contributors"]
            noise = sigmas(spec_of(specs[key]), found[key].roster, count)
            found[key] = replace(found[key], contributors=count, sigmas=noise)
    return list(found.values())


def _key(body: Mapping[str, Any]) -> Key:
    return body["session"], body["sum index"]


def _sum(facts: Mapping[str, Any], charged: Mapping[str, Any], roster: int, cohort: int | None) -> LedgerSum:
    """Return the sum that `facts` describe, and that `charged`, a row of the ledger, charges for."""
    return LedgerSum(
        session=facts["session"],
        index=facts["sum index"],
        round=charged["round"],
        kind=facts["kind"],
        query=facts["query"],
        spec=facts["spec"],
        parts=tuple(sum_part(part) for part in facts["parts"]),
        sigmas=(),
        roster=roster,
        cohort=cohort,
        contributors=None,
        members=None,
        charge=charged["charge"],
        adjacency=charged["adjacency"],
    )


def _departures(rows: Sequence[LedgerRow]) -> Iterator[Departure]:
    for row in rows:
        if row.body["entry"] in ("excluded", "barred", "forgiven"):
            why = row.body.get("why", "the operator lifted the bar")
            yield Departure(member=row.body["peer"], what=row.body["entry"], why=why)


def _kinds(sums: Sequence[LedgerSum]) -> Iterator[KindOfSums]:
    grouped: dict[str, list[LedgerSum]] = {}
    for each in sums:
        grouped.setdefault(each.kind, []).append(each)
    for kind, own in grouped.items():
        counts = [each.contributors for each in own if each.contributors is not None]
        rhos = [each.rho for each in own]
        yield KindOfSums(
            kind=kind,
            asked=len(own),
            released=len(counts),
            first_round=min(each.round for each in own),
            last_round=max(each.round for each in own),
            least_contributors=min(counts, default=None),
            most_contributors=max(counts, default=None),
            parts=own[-1].parts,
            sigmas=tuple(_range(own, place) for place in range(len(own[-1].parts))),
            rho=None if None in rhos else sum(rho for rho in rhos if rho is not None),
        )


def _range(sums: Sequence[LedgerSum], place: int) -> tuple[float, float] | None:
    found = [sigma for each in sums if each.sigmas and (sigma := each.sigmas[place]) is not None]
    return (min(found), max(found)) if found else None


# --- what is wrong with one ledger ---


def _wrong_owner(path: Path, owner: Owner, server_key: bytes | None) -> Iterator[str]:
    if server_key is not None and owner.role is Role.SERVER and owner.identity != server_key:
        own = owner.identity.hex() or "no key"
        yield f"{path} belongs to {own}, not to the key {server_key.hex()} as it should"


def _wrong_sums(reading: Reading, sums: Sequence[LedgerSum]) -> Iterator[str]:
    """Yield a sentence for each cost that does not follow from the noise, and for wrong running totals."""
    rows = [row.body for row in reading.rows]
    described = [body.get("sum") or body for body in rows if body["entry"] in ("asked", "answer")]
    for each, facts in zip(sums, (facts for facts in described if "parts" in facts), strict=False):
        expected = sum_charge(spec_of(facts), roster=each.roster, adjacency=Adjacency(each.adjacency))
        if expected != each.charge:
            yield f"{each.name} is charged {each.charge}, and its noise costs {expected}"
    asked = {each.key for each in sums}
    spend = Spend()
    for body in rows:
        if body["entry"] == "released" and _key(body) not in asked:
            yield f"sum {body['sum index']} of session {body['session'][:8]} was released, but never asked"
        if "charge so far" in body:
            spend = spend.plus(body["charge"], Adjacency(body["adjacency"]))
            if (body["charge so far"], body["unnoised so far"]) != (spend.charge, spend.unnoised):
                yield f"a row of {body['entry']} has other running totals than the rows before it add up to"


def _remarks(path: Path, reading: Reading) -> Iterator[str]:
    yield (
        "nobody has signed this ledger: its rows fit together, but its owner could have written all of them "
        "anew, unless its head was noted elsewhere, or the ledgers of others say the same"
    )
    if handed := sum(row.body["entry"] == HAND_OVER for row in reading.rows):
        yield f"it was handed over to another key of its owner {counted(handed, 'time')}"
    if reading.owner.role is Role.CLIENT:
        yield "a client's ledger has what it answered, not what it refused: that is in its log"
        unknown = [row for row in reading.rows if row.body["entry"] == "answer" and row.body["sum"] is None]
        if unknown:
            yield f"{counted(len(unknown), 'answer')} are only charged, and not described"
    if (path.parent / "ledger.head").exists():
        yield f"it is the ledger of a run: secagg audit {path.parent} also checks who signed it"


# --- several ledgers ---


def _contradictions(ledgers: Sequence[LedgerAudit]) -> Iterator[str]:
    servers = [each for each in ledgers if each.role == Role.SERVER]
    clients = [each for each in ledgers if each.role == Role.CLIENT]
    for client in clients:
        for server in servers:
            yield from _against_server(server, client)
    for place, client in enumerate(clients):
        for other in clients[place + 1 :]:
            yield from _different(client, other)


def _against_server(server: LedgerAudit, client: LedgerAudit) -> Iterator[str]:
    known = {each.key for each in server.sums}
    own = {each.key for each in client.sums}
    for each in client.sums:
        if each.key not in known:
            yield f"{client.owner} answered {each.name}, which is not in {server.path}"
    for each in _distinct(server):
        has_all = each.contributors is not None and each.contributors == each.cohort
        if each.key in own:
            continue
        if each.members is not None and client.member in each.members:
            yield f"{server.path} has {client.owner} in {each.name}, which is not in {client.path}"
        elif has_all and each.session in client.sessions:
            yield f"{server.path} has all clients of a session in {each.name}, which is not in {client.path}"
    yield from _different(server, client)


def _different(one: LedgerAudit, other: LedgerAudit) -> Iterator[str]:
    """Yield a sentence for everything that two ledgers say differently about the same sum."""
    theirs = {each.key: each for each in other.sums}
    for each in _distinct(one):
        if each.key not in theirs:
            continue
        for what, own, their in _pairs(each, theirs[each.key]):
            if own is not None and their is not None and own != their:
                yield (f"{one.path} and {other.path} disagree on {each.name}: {what} is {own} and {their}")


def _pairs(one: LedgerSum, other: LedgerSum) -> Iterator[tuple[str, Any, Any]]:
    yield "its kind", one.kind, other.kind
    yield "its round", one.round, other.round
    yield "its query", one.query[:16], other.query[:16]
    yield "its specification", (one.spec[:16], one.parts), (other.spec[:16], other.parts)
    yield "how many were asked", one.roster, other.roster
    yield "the size of the cohort", one.cohort, other.cohort
    yield "how many contributed", one.contributors, other.contributors
    replaced = Adjacency.REPLACE
    if (one.adjacency == replaced) == (other.adjacency == replaced):
        yield "its cost", str(one.charge), str(other.charge)

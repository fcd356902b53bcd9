"""The exceptions of this package, grouped by the party that causes them.

`LocalError`  The caller passed a spec, an input or a call that cannot work. Nothing was sent.
`PeerError`   Another party broke the protocol. The error names this peer.
`PolicyError` A `PeerError` for a well-formed message that offers less protection than this client requires.
`SumFailed`   No total was released, for example because too few clients stayed.

Where it is not obvious, the docstring of a `PeerError` says what could leak if the message were accepted. No
error text contains a key, a seed, a share or a value of an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self, TypeAlias

SERVER: Final = "server"
Peer: TypeAlias = int | Literal["server"]


class SecaggError(Exception):
    """The base class of all errors of this package."""


# --- this side ---------------------------------------------------------------------------------------


class LocalError(SecaggError):
    """The base class of errors that the code calling this package causes. Nothing was sent to a peer."""


class SpecError(LocalError):
    """A sum's spec is invalid. `bits_needed` is how many bits are enough if a part has too few, else None."""

    def __init__(self, why: str, *, bits_needed: int | None = None) -> None:
        super().__init__(why)
        self.bits_needed = bits_needed


class SpecTooLarge(SpecError):
    """A masked input for this spec would have more bytes than a client may send in one sum."""


class InputError(LocalError):
    """A vector does not match its spec: wrong shape or dtype, NaN or infinity, or a count out of range."""


class ParameterError(LocalError):
    """A parameter or a combination of parameters is invalid. `parameter` names it if it is a single one."""

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class StateError(LocalError):
    """The current state of the client or server machine does not allow this call."""


class Closed(StateError):
    """A client, server or session was closed, perhaps by another thread, and cannot be used any more."""


class WrongEventLoop(LocalError):
    """An asynchronous function of this package was called outside trio, for example from asyncio."""


class Unproven(LocalError):
    """Evidence does not prove that the accused client lied."""


class LedgerError(LocalError):
    """A ledger (file of past sums and privacy costs) is unusable. A new one would reset the costs."""


class MissingLedger(LedgerError):
    """A ledger (file of past sums and privacy costs) is missing. A new one would reset the costs."""


class DamagedLedger(LedgerError):
    """A ledger (file of past sums and privacy costs) was altered, or some of its rows are missing."""


class NewerLedger(LedgerError):
    """A newer version of this package wrote the ledger file, so this version may misread its rows."""


class ForeignLedger(LedgerError):
    """A ledger file belongs to another identity, so it lacks the privacy costs of this identity."""


class KeyFileError(LocalError):
    """A key file or certificate file cannot be used. The error text names the file, not its contents."""


class CertificateError(LocalError):
    """A certificate does not have the form that this package requires, or is not valid at this time."""


class RegistryError(LocalError):
    """The registry (signed list of all clients' public keys) that the caller passed cannot be used."""


class ForeignRegistry(RegistryError):
    """The trusted authority did not sign the registry of clients' keys, so its members may be fake."""


class ExpiredRegistry(RegistryError):
    """The registry of clients' keys has expired. Some of its members may have been revoked since."""


# --- the peer -------------------------------------------------------------------------------------


class PeerError(SecaggError):
    """`peer` broke the protocol. A client then ends the session; a server excludes the peer and continues."""

    def __init__(self, peer: Peer, why: str) -> None:
        super().__init__(f"{peer if peer == SERVER else f'client {peer}'}: {why}")
        self.peer = peer
        self.why = why


class MalformedMessage(PeerError):
    """A frame is not the one valid encoding of a message. A choice of encodings could carry hidden data."""


class OversizeMessage(PeerError):
    """A frame is larger than the limit. Accepting it could exhaust memory."""


class SlowReader(PeerError):
    """The peer does not read the frames sent to it. Keeping them could exhaust memory."""


class WrongVersion(PeerError):
    """The peer uses a version of protocol or transport that this side does not speak, or did not offer. An
    older version might protect less."""


class WrongSession(PeerError):
    """A message belongs to another session. Accepting it would let the server replay old messages."""


class OutOfOrder(PeerError):
    """A message came in a state that does not allow it. A second survivor list could unmask a client."""


class BadKey(PeerError):
    """A public key was changed, occurs twice or is invalid. An attacker could compute masks made with it."""


class BadSignature(PeerError):
    """A client's signature does not verify. The server may have made up the client or its message."""


class WrongHandOver(PeerError):
    """A statement about a new key is not signed by the old key or the authority, or is of another identity.
    Its maker could take the place of this identity."""


class UnknownPeer(PeerError):
    """A client is not in the registry, cohort or survivor set, or uses another's id. It may be a fake."""


class BadRoster(PeerError):
    """A list of clients lacks this client or is no valid ring, or this client was sent its own shares."""


class BadSurvivors(PeerError):
    """A survivor list lacks this client, or names a client that was not asked. (If a client that sent its
    input counts as a drop-out, the shares of its mask key are revealed, and they unmask the input.)"""


class SecretReused(PeerError):
    """A one-time secret was requested twice. A second use could unmask the input of a client."""


class RepeatedSum(PeerError):
    """The index of a sum is not above that of the last sum. The same masks would be used for two inputs."""


class RepeatedSession(PeerError):
    """The session id was seen before. Keys, shares and masks would be used twice."""


class RepeatedQuery(PeerError):
    """The query was answered before. The difference of the two totals could reveal a few inputs."""


class GroupChanged(PeerError):
    """Two sums of the same vectors (a group) are over different clients. The difference of the totals would
    reveal the sum of only a few vectors."""


class GroupReopened(PeerError):
    """A query belongs to a group (sums of the same vectors) that was closed, or to a round that is over."""


class BadVector(PeerError):
    """A masked input has the wrong length, or has padding bits that are not zero."""


class Departed(PeerError):
    """The peer left the session."""


class Barred(PeerError):
    """A client was convicted of a lie, or was in a dispute, in an earlier session."""


class Lie(PeerError):
    """The base class of errors for a client that must have lied, whatever others did. It is convicted."""


class WrongShare(Lie):
    """A revealed share does not fit the tag that client `dealer` published and the holder accepted, or is
    outside the field of the secret sharing: a holder accepts no such share."""

    def __init__(self, peer: Peer, dealer: int) -> None:
        super().__init__(peer, f"a share of client {dealer} that it cannot have accepted")
        self.dealer = dealer


class FalseDealing(Lie):
    """Shares that fit the tags of their dealer do not open what it published: a commitment or a key. `column`
    is the place of the shares in their rows."""

    def __init__(self, peer: Peer, column: int) -> None:
        super().__init__(peer, "its shares do not open what it published")
        self.column = column


class UnreadableShares(Lie):
    """More holders report the shares of one dealer than can lie. Only the server can tell, because it knows
    that it delivered them unchanged."""


class FalseReport(Lie):
    """A holder reports the shares of more dealers than can lie. Only the server can tell."""


class FalseCount(Lie):
    """A client's masked count is not 1 plus the masks that belong on it."""


class FalseWord(Lie):
    """The mask that a client put on its count for a drop-out, client `other`, is not that of the pair."""

    def __init__(self, peer: Peer, other: int) -> None:
        super().__init__(peer, f"a false mask for client {other}")
        self.other = other


class FalseDeposit(Lie):
    """A client's dealt secret does not open its deposit for the pair secret with client `other`."""

    def __init__(self, peer: Peer, other: int) -> None:
        super().__init__(peer, f"a false deposit for client {other}")
        self.other = other


class ManyDisputes(Lie):
    """A client contradicts more others about their common masks or shares than can lie."""


class Dispute(PeerError):
    """This client and `other` contradict each other about a common mask or share. One of them lies."""

    def __init__(self, peer: Peer, other: int) -> None:
        super().__init__(peer, f"is in dispute with client {other}")
        self.other = other


# --- the peer, by our policy ----------------------------------------------------------------------


class PolicyError(PeerError):
    """A well-formed message offers less protection than this client requires."""


class WrongTrust(PolicyError):
    """The server proposes a trust level that differs from the policy of this client."""


class WrongKeyAgreement(PolicyError):
    """The server proposes another key agreement than the policy of this client."""


class WrongTable(PolicyError):
    """The server's table of sums differs from this client's, for example in kinds, bounds or bits."""


class WrongRegistry(PolicyError):
    """A registry of clients' keys differs from this client's, is older than one seen, or wrongly signed."""


class SmallCohort(PolicyError):
    """The cohort (all clients of a session) is so small that sums reveal too much or cannot be unmasked."""


class LargeCohort(PolicyError):
    """There are more clients than the session, the policy, the planned noise or the complete graph allows."""


class SmallThreshold(PolicyError):
    """So few shares open a secret that colluders, or each of two disjoint groups of clients, hold enough."""


class FewContributors(PolicyError):
    """The total would be over fewer clients than the policy, the threshold or the planned noise requires."""


class TooManySums(PolicyError):
    """There are more sums than the session or the policy allows, or than the table allows of one kind."""


class BudgetExceeded(PolicyError):
    """A sum with noise costs more than is left of this client's privacy budget."""


class UnchangedValues(PolicyError):
    """The same values were summed before over nearly the same clients. The difference of the two totals would
    be the sum of only a few clients' vectors."""


class SmallDifference(PolicyError):
    """An earlier sum of the same kind was over nearly the same clients: the two sets differ, but by fewer
    clients than this client's policy demands (`min_difference`)."""


class HiddenMembers(PolicyError):
    """The policy compares the clients of successive sums, but the session does not name those of its ring."""


class UnknownSum(PolicyError):
    """The server asks for a kind of sum that is not in this client's table of sums."""


class SessionLive(PolicyError):
    """This identity is already in a session. A second one could sum the same values over other clients."""


# --- neither side -----------------------------------------------------------------------------------


class SumFailed(SecaggError):
    """The base class of errors for a sum without a released total. Perhaps no party broke the protocol."""


class TooFewClients(SumFailed):
    """Too few clients are left for a sum: `present` of `needed`. Each number is None if it is not known."""

    def __init__(self, why: str, *, present: int | None = None, needed: int | None = None) -> None:
        super().__init__(why)
        self.present = present
        self.needed = needed

    @classmethod
    def only(cls, present: int, did: str, needed: int) -> Self:
        return cls(f"only {present} clients {did}; {needed} are needed", present=present, needed=needed)


class CorruptTotal(SumFailed):
    """A total was discarded: masks are left in it, adding was interrupted, or its values are impossible.
    `liars` has one error per client that is known to have caused it."""

    def __init__(self, why: str, liars: Sequence[Lie] = ()) -> None:
        super().__init__(why)
        self.liars = tuple(liars)


class CohortChanged(SumFailed):
    """A client left between two sums of the same vectors (a group). The later sum was not released."""


class Unrecoverable(SumFailed):
    """Secrets could not be reconstructed, so masks remain. `liars` has one error per client that lied."""

    def __init__(self, liars: Sequence[Lie]) -> None:
        super().__init__("; ".join(str(liar) for liar in liars))
        self.liars = tuple(liars)


class Disputed(SumFailed):
    """Clients contradict each other about common masks or shares. `pairs` has the ids of each two. `signed`
    tells whether both ends of every pair signed what they say."""

    def __init__(self, pairs: Sequence[tuple[int, int]], *, signed: bool) -> None:
        super().__init__(f"{len(pairs)} pairs of clients contradict each other")
        self.pairs = tuple(pairs)
        self.signed = signed

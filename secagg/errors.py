"""The errors of secure sums, by the side that causes them.

`LocalError`  This side passed a spec, an input or a call that cannot work. Nothing was sent.
`PeerError`   Another party broke the protocol. The error names this peer.
`PolicyError` A `PeerError` for a well-formed message that offers less protection than this client requires.
`SumFailed`   No total was released, for example because too few clients stayed.

The docstring of a `PeerError` says what could leak if the machine accepted the message. No error text has a
key, a seed, a share or a value of an input.
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
    """The base class of errors in what the caller passed. They are raised before anything is sent."""


class SpecError(LocalError):
    """The spec of a sum is invalid. If the cause is too few bits, `bits_needed` would be enough."""

    def __init__(self, why: str, *, bits_needed: int | None = None) -> None:
        super().__init__(why)
        self.bits_needed = bits_needed


class SpecTooLarge(SpecError):
    """The masked input of a sum would have more bytes than the limit."""


class InputError(LocalError):
    """A vector does not match its spec: wrong shape or dtype, a NaN, or a count out of range."""


class ParameterError(LocalError):
    """A parameter is invalid, whose name is `parameter`, or a combination is, and `parameter` is None."""

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class StateError(LocalError):
    """The state of the machine does not allow this call."""


class LedgerError(LocalError):
    """A ledger cannot be used. The code never replaces it by an empty one, which would reset the spend."""


class MissingLedger(LedgerError):
    """The file of a ledger does not exist. It is not created, because that would reset the spend."""


class DamagedLedger(LedgerError):
    """A ledger was altered, or some of its rows are missing."""


class NewerLedger(LedgerError):
    """A ledger was written by a newer version of this package, so this version may misread its rows."""


class ForeignLedger(LedgerError):
    """A ledger belongs to another identity, so its spend is not the spend of this one."""


class KeyFileError(LocalError):
    """A key file or certificate file cannot be used. The error text names the file, not its contents."""


class CertificateError(LocalError):
    """A certificate does not have the form that this package requires, or is not valid at this time."""


class RegistryError(LocalError):
    """The registry of identities that the caller passed cannot be used."""


class ForeignRegistry(RegistryError):
    """The trusted authority did not sign the registry, so all of its members may be invented."""


class ExpiredRegistry(RegistryError):
    """The registry has expired, so some of its identities may have been revoked since."""


# --- the peer -------------------------------------------------------------------------------------


class PeerError(SecaggError):
    """`peer` broke the protocol. A client that raises this error fails; a server excludes the peer."""

    def __init__(self, peer: Peer, why: str) -> None:
        super().__init__(f"{peer if peer == SERVER else f'client {peer}'}: {why}")
        self.peer = peer
        self.why = why


class MalformedMessage(PeerError):
    """A frame is not the canonical encoding of a known message. Other encodings could hide data in frames."""


class OversizeMessage(PeerError):
    """A frame is larger than the limit. Accepting it could exhaust memory."""


class SlowReader(PeerError):
    """The peer does not read the frames sent to it. Keeping them could exhaust memory."""


class WrongVersion(PeerError):
    """A message has another protocol version. Versions are not negotiated, so none can be downgraded."""


class WrongSession(PeerError):
    """A message belongs to another session. Accepting it would let a server replay old answers."""


class OutOfOrder(PeerError):
    """The state forbids this message. A second survivor list could get both kinds of share of a peer."""


class BadKey(PeerError):
    """A public key was changed, occurs twice or has small order. The attacker can compute its masks."""


class BadSignature(PeerError):
    """A signature does not verify. The server may have invented the client."""


class UnknownPeer(PeerError):
    """A client is not in the registry, the cohort or the survivors, or uses the id of another one. The server
    may have invented it to obtain shares."""


class BadRoster(PeerError):
    """A cohort or roster lacks this client, is no valid ring, or delivers a client its own envelope."""


class BadSurvivors(PeerError):
    """A survivor set is not a subset of the roster, or lacks this client.

    For a drop-out, shares of the mask key are revealed. If it is no drop-out, its masked input can be read.
    """


class SecretReused(PeerError):
    """A one-time secret was requested twice. Both kinds of share for a peer would open its input."""


class RepeatedSum(PeerError):
    """The index of a sum is not above the last one. The same masks would cover two inputs."""


class RepeatedSession(PeerError):
    """The session id was seen before, so keys, shares and masks would repeat."""


class RepeatedQuery(PeerError):
    """The query was answered before. Two totals over different sets of clients reveal their difference."""


class GroupChanged(PeerError):
    """A sum is over other clients than the last sum of its group. The difference reveals their vectors."""


class GroupReopened(PeerError):
    """A query belongs to a group that was closed, or to one of an earlier round or session."""


class BadVector(PeerError):
    """A masked input has the wrong length, or has padding bits that are not zero."""


class Departed(PeerError):
    """The peer left the session."""


class BadShare(PeerError):
    """A revealed share is not an element of the field of the secret sharing."""


class CorruptDealer(PeerError):
    """The shares of a client's secret do not open its commitment, or too few of them were revealed.

    `proven` is true if corrupt holders alone cannot be the cause, given how many are tolerated. Otherwise
    either the dealer or its holders may be corrupt.
    """

    def __init__(self, peer: Peer, why: str, *, proven: bool) -> None:
        super().__init__(peer, why)
        self.proven = proven


# --- the peer, by our policy ----------------------------------------------------------------------


class PolicyError(PeerError):
    """A well-formed message offers less protection than this client requires."""


class WrongTrust(PolicyError):
    """The server proposes another trust level than the policy of this client requires."""


class WrongTable(PolicyError):
    """The server's table of sums differs from this client's: it has other kinds, bounds, bits or limits."""


class WrongRegistry(PolicyError):
    """The registry of identities differs from this client's, or is older than one that it has seen."""


class SmallCohort(PolicyError):
    """The cohort has too few clients, so a sum over them would reveal too much about each."""


class LargeCohort(PolicyError):
    """There are more clients than the policy, the planned noise or the complete graph allows."""


class SmallThreshold(PolicyError):
    """The tolerated colluders could reach the threshold, alone or if clients get different messages."""


class FewContributors(PolicyError):
    """The total would be over fewer clients than this client requires."""


class TooManySums(PolicyError):
    """There are more sums than the algorithm declares, or more sums without noise than the policy allows."""


class BudgetExceeded(PolicyError):
    """A sum with noise costs more than is left of this client's privacy budget."""


class UnchangedValues(PolicyError):
    """The same values were summed before over nearly the same clients. The difference reveals the others."""


class SmallDifference(PolicyError):
    """An earlier sum of the same kind was over nearly the same clients, which `min_difference` forbids."""


class HiddenMembers(PolicyError):
    """A ring hides its members, but the rules of this client have to compare sets of clients."""


class UnknownSum(PolicyError):
    """The kind of sum is not in the table of this client."""


class SessionLive(PolicyError):
    """This identity already takes part in a session. A second one at the same time allows differencing."""


# --- neither side -----------------------------------------------------------------------------------


class SumFailed(SecaggError):
    """The base class of errors without a guilty side. No total was released."""


class TooFewClients(SumFailed):
    """Too few clients were left: `present` of at least `needed`. Each is None if it is not known."""

    def __init__(self, why: str, *, present: int | None = None, needed: int | None = None) -> None:
        super().__init__(why)
        self.present = present
        self.needed = needed

    @classmethod
    def only(cls, present: int, did: str, needed: int) -> Self:
        return cls(f"only {present} clients {did}; {needed} are needed", present=present, needed=needed)


class CorruptTotal(SumFailed):
    """The total was discarded: its hidden count shows that masks are left, or unmasking was interrupted."""


class CohortChanged(SumFailed):
    """A client left between two sums of a group. The sum was abandoned before anything was revealed."""


class Unrecoverable(SumFailed):
    """Secrets of the clients in `dealers` could not be reconstructed, so their masks cannot be removed."""

    def __init__(self, dealers: Sequence[CorruptDealer]) -> None:
        super().__init__("; ".join(str(dealer) for dealer in dealers))
        self.dealers = tuple(dealers)

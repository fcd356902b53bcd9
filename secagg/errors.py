"""The errors of secure sums, by the side that causes them.

`LocalError`  this side: a spec, an input or a call that cannot work. Nothing was sent.
`PeerError`   a party on the wire broke the protocol. It names the peer.
`PolicyError` a `PeerError`: the message is well-formed, but offers less than this client accepts.
`SumFailed`   neither side: too few clients, or a group that changed. No total was released.

The docstring of a peer's error says what would leak if the machine went on. No message ever holds a key, a
seed, a share or a value of an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self, TypeAlias

SERVER: Final = "server"
Peer: TypeAlias = int | Literal["server"]


class SecaggError(Exception):
    """Base class of the errors of this package."""


# --- this side ---------------------------------------------------------------------------------------


class LocalError(SecaggError):
    """A mistake on this side, found before anything was sent."""


class SpecError(LocalError):
    """The spec of a sum is impossible. If it has too few bits, `bits_needed` are enough."""

    def __init__(self, why: str, *, bits_needed: int | None = None) -> None:
        super().__init__(why)
        self.bits_needed = bits_needed


class SpecTooLarge(SpecError):
    """The input of a sum would have too many bytes."""


class InputError(LocalError):
    """A vector does not match its spec: shape, dtype, NaN, or a count outside its range."""


class ParameterError(LocalError):
    """A parameter makes no sense, or no parameters satisfy the request.

    `parameter` is the name of the parameter to change, or None if no single one is to blame.
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class StateError(LocalError):
    """A call that the state of the machine does not allow."""


class LedgerError(LocalError):
    """A ledger cannot be used. What it says was spent is never silently reset."""


class MissingLedger(LedgerError):
    """A ledger does not exist. An empty one in its place would forget what was spent."""


class DamagedLedger(LedgerError):
    """A ledger was altered, or rows of it are missing."""


class NewerLedger(LedgerError):
    """A ledger was written by a newer version, whose rows this one may misread."""


class ForeignLedger(LedgerError):
    """A ledger belongs to another identity, whose spend is not ours."""


class KeyFileError(LocalError):
    """A file of a key or of certificates cannot be used. The message names the file, never its contents."""


class CertificateError(LocalError):
    """Not a certificate of the one form that identities have here, or not valid now."""


class RegistryError(LocalError):
    """Our own registry of identities cannot be used."""


class ForeignRegistry(RegistryError):
    """A registry that our authority did not sign: all of its members may be invented."""


class ExpiredRegistry(RegistryError):
    """A registry that has expired: identities that it lists may have been revoked since."""


# --- the peer -------------------------------------------------------------------------------------


class PeerError(SecaggError):
    """`peer` broke the protocol. The machine that raises this has stopped for good."""

    def __init__(self, peer: Peer, why: str) -> None:
        super().__init__(f"{peer if peer == SERVER else f'client {peer}'}: {why}")
        self.peer = peer
        self.why = why


class MalformedMessage(PeerError):
    """Not a canonical encoding of a known message. A lenient parser gives attackers a second channel."""


class OversizeMessage(PeerError):
    """Larger than this side agreed to hold in memory."""


class SlowReader(PeerError):
    """The peer does not read what it is sent, which this side would have to keep in memory."""


class WrongVersion(PeerError):
    """Another version of the protocol. There is no negotiation, hence no downgrade."""


class WrongSession(PeerError):
    """A message of another session. Accepting it would let a server replay old answers."""


class OutOfOrder(PeerError):
    """A message that its stage does not allow.

    A second survivor list, for example, would yield both kinds of share for one peer.
    """


class BadKey(PeerError):
    """A public key that changed, repeats, is ours, or is a point of small order.

    Masks agreed under such a key are known to the party that planted it.
    """


class BadSignature(PeerError):
    """A signature that does not verify. The server may have invented the client."""


class UnknownPeer(PeerError):
    """An identity outside the registry or the cohort: a Sybil whose shares the server holds."""


class BadRoster(PeerError):
    """A cohort or roster with repeats, with unknown clients, or without this client."""


class BadSurvivors(PeerError):
    """A survivor set that is no subset of the roster, or lacks this client.

    Shares of the mask key of a client called dropped out are revealed; its late input would be readable.
    """


class SecretReused(PeerError):
    """A one-time secret requested twice: both kinds of share for a peer open its input."""


class RepeatedSum(PeerError):
    """A sum index at or below one already used. Its masks would cover two inputs."""


class RepeatedSession(PeerError):
    """A session id seen before: keys, shares and masks would repeat."""


class RepeatedQuery(PeerError):
    """A query answered before. Two totals over different clients differ by those clients."""


class GroupChanged(PeerError):
    """A sum of a group over other clients than the last one: the difference reveals who left."""


class GroupReopened(PeerError):
    """A group that was closed, or belongs to an earlier round or session."""


class BadVector(PeerError):
    """A masked input of the wrong length, or bits outside the ring."""


class Departed(PeerError):
    """The peer left the session."""


class BadShare(PeerError):
    """A revealed share outside the field, or not on the polynomial that the others agree on."""


class CorruptDealer(PeerError):
    """The shares of a client's secret do not open its commitment.

    `proven` if the tolerated number of lying holders could not explain it. Otherwise the dealer's lie cannot
    be told from theirs.
    """

    def __init__(self, peer: Peer, why: str, *, proven: bool) -> None:
        super().__init__(peer, why)
        self.proven = proven


# --- the peer, by our policy ----------------------------------------------------------------------


class PolicyError(PeerError):
    """Well-formed, but less protection than this client accepts."""


class WrongTrust(PolicyError):
    """The server proposes another trust level than ours."""


class WrongTable(PolicyError):
    """The server's table of sums is not ours: other bounds, other bits, other limits."""


class WrongRegistry(PolicyError):
    """Another registry of identities than ours, or an older one than we have seen."""


class SmallCohort(PolicyError):
    """Too few clients: a sum over them says too much about each."""


class LargeCohort(PolicyError):
    """More clients than our encoding can hold, or than the complete graph allows."""


class SmallThreshold(PolicyError):
    """A threshold that the tolerated colluders could reach, alone or with a split audience."""


class FewContributors(PolicyError):
    """A total over fewer clients than this client requires."""


class TooManySums(PolicyError):
    """More sums than the algorithm declares, or than our policy allows without noise."""


class BudgetExceeded(PolicyError):
    """A sum with noise that costs more than is left of our privacy budget."""


class UnchangedValues(PolicyError):
    """Values that were summed before, over nearly the same clients: the difference shows the others."""


class SmallDifference(PolicyError):
    """A sum of the same kind over nearly the same clients; `min_difference` of our policy forbids it."""


class HiddenMembers(PolicyError):
    """A ring whose members this client does not know, so that it could not compare sets of clients."""


class UnknownSum(PolicyError):
    """A kind of sum that our table does not have."""


class SessionLive(PolicyError):
    """This identity already takes part in a session; a parallel one allows differencing."""


# --- neither side -----------------------------------------------------------------------------------


class SumFailed(SecaggError):
    """No total was released. The algorithm keeps its last state."""


class TooFewClients(SumFailed):
    """Fewer clients than the threshold were left.

    `present` were left and `needed` would have been enough; None if it is not a matter of numbers alone.
    """

    def __init__(self, why: str, *, present: int | None = None, needed: int | None = None) -> None:
        super().__init__(why)
        self.present = present
        self.needed = needed

    @classmethod
    def only(cls, present: int, did: str, needed: int) -> Self:
        return cls(f"only {present} clients {did}; {needed} are needed", present=present, needed=needed)


class CorruptTotal(SumFailed):
    """The hidden count is wrong: some masks did not cancel. The total was discarded."""


class CohortChanged(SumFailed):
    """A client left within a group. The sum was abandoned before anything was revealed."""


class Unrecoverable(SumFailed):
    """A mask could not be reconstructed. Of its `dealers`, those proven corrupt are excluded."""

    def __init__(self, dealers: Sequence[CorruptDealer]) -> None:
        super().__init__("; ".join(str(dealer) for dealer in dealers))
        self.dealers = tuple(dealers)

"""`DealtShares`: the server's record of the shares that clients dealt: tags, and reports of bad shares."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from secagg.cohort_members import Cohort
from secagg.deposits import Deposits
from secagg.hybrid_keys import KeyAgreement, mask_key_of
from secagg.message_records import Format
from secagg.share_tags import TAG_BYTES, receipt, tags_digest
from secagg.topology import Graph


class DealtShares:
    """The tags of all shares that the members of `cohort` dealt, and reports of shares that do not fit them.
    Dealers and holders are named by their positions in the cohort."""

    def __init__(self, cohort: Cohort, graph: Graph, form: Format) -> None:
        self._cohort = cohort
        self._graph = graph
        self._form = form
        self._tags: dict[int, bytes] = {}
        self._signatures: dict[int, bytes] = {}
        self._lost: dict[int, frozenset[int]] = {}  # holder -> dealers of which it has no share
        self._reporters: defaultdict[int, list[int]] = defaultdict(list)  # dealer -> such holders
        self.deposits = Deposits(cohort, sums=form.sums)
        self.recipients: list[int] = []  # who was sent the shares of its neighbours
        self._receipts: dict[int, bytes] = {}
        self.went_on: set[int] = set()  # holders that may no longer report shares

    @property
    def columns(self) -> int:
        """The number of shares in a row: of the self-mask secret, of the mask key and of each noise seed."""
        return 2 + self._form.seeds

    # --- set-up ---

    def around(self, dealer: int) -> Sequence[int]:
        """Return the positions of the holders of the shares of `dealer`, itself included, in order."""
        return self._graph.neighbourhood(dealer)

    def add(self, dealer: int, tags: bytes, signature: bytes) -> None:
        self._tags[dealer] = tags
        self._signatures[dealer] = signature

    def tags_for(self, dealer: int, place: int) -> bytes:
        """Return the tags of the shares that `dealer` dealt to the member at `place` around it."""
        size = self._form.tags_bytes
        return self._tags[dealer][place * size : (place + 1) * size]

    def published(self, dealer: int) -> tuple[bytes, bytes]:
        """Return all tags of `dealer`, and its signature on them."""
        return self._tags[dealer], self._signatures[dealer]

    def report(self, holder: int, dealers: Iterable[int]) -> None:
        """Record that `holder` cannot open the shares of `dealers`, or that they do not fit their tags."""
        self._lost[holder] = frozenset(dealers)
        for dealer in self._lost[holder]:
            self._reporters[dealer].append(holder)

    def has_reported(self, holder: int) -> bool:
        return holder in self._lost

    def reporters(self, dealer: int) -> list[int]:
        """Return the holders that reported the shares of `dealer`."""
        return sorted(self._reporters[dealer])

    def disputes(self) -> list[tuple[int, int]]:
        """Return the ids of each holder and dealer of which the holder reported the dealer's shares."""
        ids = self._cohort.ids
        return [(ids[holder], ids[each]) for holder, dealers in self._lost.items() for each in dealers]

    def exchanged(self) -> Counter[tuple[int, bool]]:
        """Return how many recipients there are, by (d, m): d of the recipient's neighbours dealt shares, and
        m is whether it made a deposit."""
        dealt, owners = self._graph.present_around(self._tags), self.deposits.owners
        return Counter((dealt[each] - 1, each in owners) for each in self.recipients)

    # --- hybrid key agreement ---

    @property
    def agreement(self) -> KeyAgreement:
        return self._form.agreement

    def pair_secrets(
        self, dropped: int, survivors: Sequence[int], sum_index: int, secret: bytes
    ) -> tuple[bytes, dict[int, bytes]]:
        """Return the private mask key of a drop-out, and its pair secrets with `survivors`, from its dealt
        `secret` of a sum. There are no pair secrets without KEM. Raises `FalseDeposit`."""
        mask_key = mask_key_of(secret, self.agreement)
        if not self._form.is_hybrid:
            return mask_key, {}
        return mask_key, self.deposits.opened(dropped, survivors, sum_index, secret)

    # --- what a holder has to reveal ---

    def held_by(self, holder: int) -> list[tuple[int, int]]:
        """Return (dealer, place of the holder around the dealer) for all shares that `holder` accepted."""
        lost = self._lost.get(holder, frozenset())
        around = zip(self._graph.neighbourhood(holder), self._graph.places(holder), strict=True)
        return [(dealer, place) for dealer, place in around if dealer in self._tags and dealer not in lost]

    def tag(self, dealer: int, place: int, sum_index: int) -> bytes:
        """Return the tag of the row of shares of one sum that `dealer` dealt to the member at `place`."""
        start = place * self._form.tags_bytes + sum_index * TAG_BYTES
        return self._tags[dealer][start : start + TAG_BYTES]

    def accepted_by(self, holder: int) -> list[tuple[int, bytes]]:
        """Return (id of a dealer, digest of its tags for `holder`) for all shares that `holder` accepted."""
        ids = self._cohort.ids
        return [(ids[dealer], tags_digest(self.tags_for(dealer, at))) for dealer, at in self.held_by(holder)]

    def receipt(self, holder: int) -> bytes:
        """Return the digest of `accepted_by(holder)`, which `holder` signs. It is computed once: a holder
        that has signed it may not report shares any more (`went_on`)."""
        if holder not in self._receipts:
            self._receipts[holder] = receipt(self.accepted_by(holder))
        return self._receipts[holder]

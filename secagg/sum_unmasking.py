"""The server's side of one sum: it adds masked inputs, collects shares, and unmasks the total.

Each masked vector is added to a total and then discarded, so memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg import errors
from secagg.bitmap import PositionSet, unpack_positions
from secagg.dealt_shares import DealtShares
from secagg.evidence import Signed, Statement
from secagg.hybrid_keys import mask_key_of
from secagg.keys import noise_commitment, public_key, seed_commitment
from secagg.mask_keystream import KeyStream
from secagg.message_records import ID_BYTES
from secagg.messages import MaskedInput, Reveal
from secagg.query_context import Question
from secagg.self_and_pair_masks import (
    Expander,
    PairMasks,
    Removal,
    masks_with,
    own_count_word,
    own_mask,
    pair_count_words,
)
from secagg.shamir import interpolate, lagrange_weights, shares_from_bytes
from secagg.share_tags import DealtRow, RevealedRow, cut_rows, revealed_columns
from secagg.sum_spec import COUNT_BITS, COUNT_BYTES, Total, Values
from secagg.topology import Graph


class CheckedRow(NamedTuple):
    """What a holder revealed of one dealer, and the place of the holder around the dealer."""

    dealer: int
    place: int
    row: RevealedRow
    shares: list[int]

    def __repr__(self) -> str:
        return f"CheckedRow(dealer={self.dealer}, place={self.place})"  # no shares


_Secret: TypeAlias = tuple[int, int]  # (position of its dealer, layer: 0 for masks, from 1 on for noise)


class Tally:
    """The server's state of one sum. A client is named by its position in the cohort. *Layers* number the
    secrets of a client: layer 0 is its self-mask secret or, if it dropped out, its mask key. Layers from 1 on
    are seeds of its removable noise. Some of these are *surplus*: as fewer clients dropped out than planned,
    their noise is removed from the total."""

    def __init__(self, question: Question, graph: Graph, dealt: DealtShares, *, expander: Expander) -> None:
        self.question = question
        self._graph = graph
        self._dealt = dealt
        self._expander = expander
        self._accumulator = question.encoding.zeros()
        self._buffer: list[Values] = []
        self._spoiled = False  # an addition or the unmasking was interrupted
        self.contributors: set[int] = set()
        self.survivors = PositionSet()
        self.confirmations: dict[int, bytes] = {}
        self._inputs: dict[int, Signed] = {}
        self._asked = np.zeros(question.cohort.size, bool)
        self._asked[list(question.roster)] = True
        self._counts: dict[int, int] = {}  # contributor -> its masked count
        self.reveals: dict[int, Reveal] = {}
        self._signed_reveals: dict[int, Signed] = {}
        self._cut: dict[int, dict[int, RevealedRow]] = {}  # holder -> dealer -> row; only for evidence
        self.secrets: dict[_Secret, bytes] = {}  # those that were reconstructed
        # contributor -> for each place around it, the mask of this pair on the contributor's count
        self._words: dict[int, NDArray[np.uint64]] = {}
        self._columns = revealed_columns(())
        # position of a dealer -> for each of its revealed layers, a mapping from point to share
        self._shares: dict[int, list[dict[int, int]]] = {}

    # --- collecting ---

    def add_input(self, position: int, message: MaskedInput, signed: Signed) -> None:
        """Add a client's masked input to the total. Raises `BadVector` if it does not fit the spec. `signed`
        is what the client signed with it."""
        encoding, asked = self.question.encoding, self._asked_around(position)
        if not encoding.accepts(message.data) or len(message.words) != COUNT_BYTES * len(asked):
            raise errors.BadVector(self._id(position), "a masked input that does not fit the spec")
        self._spoiled = True
        encoding.add(self._accumulator, message.data)
        self._spoiled = False
        self.contributors.add(position)
        self._inputs[position] = signed
        self._counts[position] = int.from_bytes(message.data[-COUNT_BYTES:], "little")
        self._words[position] = np.zeros(self._graph.neighbours + 1, np.uint64)
        self._words[position][asked] = np.frombuffer(message.words, "<u8")

    def _asked_around(self, position: int) -> NDArray[np.intp]:
        """Return the places around the client at `position` of its neighbours that were asked too."""
        around = np.array(self._graph.neighbourhood(position))
        return np.flatnonzero(self._asked[around] & (around != position))

    def disputes(self) -> list[tuple[int, int]]:
        """Return the ids of each two contributors that put different masks on their counts for each other."""
        size, found = self.question.cohort.size, []
        rows = np.zeros((size, self._graph.neighbours + 1), np.uint64)
        present = np.zeros(size, bool)
        for position, words in self._words.items():
            rows[position], present[position] = words, True
        for one in sorted(self.contributors):
            around, places = np.array(self._graph.neighbourhood(one)), np.array(self._graph.places(one))
            differ = (rows[one] != rows[around, places]) & present[around] & (around > one)
            found += [(self._id(one), self._id(other)) for other in around[differ].tolist()]
        return found

    def signers(self) -> list[tuple[int, bytes]]:
        """Return (id, signature on the survivors) of each client that confirmed them, in order."""
        return [(self._id(position), self.confirmations[position]) for position in sorted(self.confirmations)]

    def fix_survivors(self) -> PositionSet:
        """Return the survivors: the positions of the clients whose inputs were added. Call this once, after
        the last input: only then can `add_reveal` store shares."""
        self._buffer = self.question.encoding.buffer()
        self.survivors = PositionSet(self.contributors)
        self._columns = revealed_columns(self.question.surplus(len(self.survivors)))
        self._shares = {
            position: [{} for _ in self._columns[position in self.survivors]]
            for position in self.question.roster
        }
        return self.survivors

    def add_reveal(self, position: int, reveal: Reveal, signed: Signed) -> None:
        """Store the shares that the client at `position` revealed. Raises `WrongShare` if one does not fit
        its tag or is outside the field, and `MalformedMessage` if they are not just those that it has to
        reveal."""
        self._signed_reveals[position] = signed
        for row in self._rows(position, reveal):
            for kept, share in zip(self._shares[row.dealer], row.shares, strict=True):
                kept[row.place + 1] = share
        self.reveals[position] = reveal

    def _rows(self, position: int, reveal: Reveal) -> list[CheckedRow]:
        """Return the rows of shares in `reveal`, by the client at `position`. Raises `PeerError`."""
        sender, around = self._id(position), self._graph.neighbourhood(position)
        places = dict(self._dealt.held_by(position))
        owed, columns = self._owed(position)
        marked = unpack_positions(reveal.dealers, len(around), sender=sender)
        if [around[place] for place in marked] != owed:
            raise errors.MalformedMessage(sender, "not just the shares that it holds of the roster")
        rows = cut_rows(reveal.shares, reveal.hidden, columns, width=self._dealt.columns)
        if rows is None:
            raise errors.MalformedMessage(sender, "not just the shares that it holds of the roster")
        shares = shares_from_bytes(reveal.shares)  # None if one is outside the field: no holder accepts it
        index, ids, session = self.question.sum_index, self.question.cohort.ids, self.question.cohort.session
        checked, at = [], 0
        for dealer, row, taken in zip(owed, rows, columns, strict=True):
            dealt = DealtRow(session, ids[dealer], sender, index)
            fits = dealt.tag_of(row, taken) == self._dealt.tag(dealer, places[dealer], index)
            if not fits or (shares is None and shares_from_bytes(row.shares) is None):
                raise errors.WrongShare(sender, ids[dealer])
            if shares is not None:
                checked.append(CheckedRow(dealer, places[dealer], row, shares[at : at + len(taken)]))
            at += len(taken)
        return checked

    def _owed(self, position: int) -> tuple[list[int], list[tuple[int, ...]]]:
        """Return the dealers whose shares the client at `position` has to reveal, and the columns of each."""
        owed = [dealer for dealer, _ in self._dealt.held_by(position) if dealer in self._shares]
        return owed, [self._columns[dealer in self.survivors] for dealer in owed]

    @property
    def _surplus(self) -> tuple[int, ...]:
        return self.question.surplus(len(self.survivors))

    @property
    def revealed(self) -> set[int]:
        """The positions of the clients that revealed their shares."""
        return set(self.reveals)

    def around(self) -> Counter[tuple[int, int, bool]]:
        """Return how many clients sent inputs, by (a, s, r): of the client and its neighbours, a were asked
        and s are survivors; r is whether the client revealed shares."""
        asked = self._graph.present_around(self.question.roster)
        survived = self._graph.present_around(self.survivors)
        return Counter((asked[each], survived[each], each in self.reveals) for each in self.contributors)

    # --- unmasking ---

    def check_reach(self, present: PositionSet | set[int], threshold: int) -> None:
        """Raise `TooFewClients` if fewer than `threshold` holders of some client's shares are `present`."""
        around = self._graph.present_around(present)
        worst = min(self.question.roster, key=around.__getitem__)
        if around[worst] < threshold:
            raise errors.TooFewClients(
                f"only {around[worst]} of client {self._id(worst)}'s neighbours are left; "
                f"{threshold} are needed to remove its masks",
                present=around[worst],
                needed=threshold,
            )

    def unmask(self) -> Total:
        """Remove all masks and surplus noise, and return the total. Raises `SumFailed` if a secret cannot be
        reconstructed or the total is corrupt."""
        cohort = self.question.cohort
        self.check_reach(self.revealed, cohort.threshold)
        self._check_shares()
        self._expander.get_ready()
        self._reconstruct()
        if self._spoiled:
            # The hidden count cannot detect this: it is the last element, and may be right nevertheless.
            raise errors.CorruptTotal("adding or unmasking inputs was interrupted before")
        self._spoiled = True
        self._expander.take_off(self._accumulator, self._all_removals(), salt=cohort.session)
        self._remove_noise()
        try:
            return self.question.encoding.decode(
                self._accumulator,
                contributors=len(self.survivors),
                invited=len(self.question.roster),
                buffer=self._buffer,
            )
        except errors.CorruptTotal as error:
            raise errors.CorruptTotal(str(error), liars=list(self._count_liars())) from None

    def _check_shares(self) -> None:
        """Raise `Disputed` if a client has too few shares because some holders reported them as bad."""
        pairs = [
            (self._id(dealer), self._id(reporter))
            for dealer, rows in self._shares.items()
            if len(rows[0]) < self.question.cohort.threshold
            for reporter in self._dealt.reporters(dealer)
            if reporter in self.reveals
        ]
        if pairs:
            raise errors.Disputed(pairs, signed=False)

    def _count_liars(self) -> Iterator[errors.Lie]:
        """Yield an error for each client whose masked count, or a mask on it, is false."""
        question = self.question
        for (position, layer), secret in self.secrets.items():
            if layer:
                continue
            if position in self.contributors:
                word = own_count_word(question, position=position, secret=secret)
                if self._count_without_masks(position, word) != 1:
                    yield errors.FalseCount(self._id(position), "a masked count that is not 1")
            else:
                around = zip(self._graph.neighbourhood(position), self._graph.places(position), strict=True)
                claims = {peer: self._words[peer][at] for peer, at in around if peer in self.contributors}
                words = pair_count_words(self._masks_of(position, secret), question)
                for (peer, claim), word in zip(claims.items(), words, strict=True):
                    if claim != word:
                        yield errors.FalseWord(self._id(peer), self._id(position))

    def _count_without_masks(self, position: int, own: int) -> int:
        words = zip(self._graph.neighbourhood(position), self._words[position].tolist(), strict=True)
        pairs: int = sum(word if peer < position else -word for peer, word in words)
        return (self._counts[position] - own - pairs) % (1 << COUNT_BITS)

    def _all_removals(self) -> list[Removal]:
        """Return all masks to remove. Raises `Unrecoverable` if a drop-out made a false deposit."""
        try:
            return list(self._removals())
        except errors.FalseDeposit as lie:
            raise errors.Unrecoverable([lie]) from None

    def _removals(self) -> Iterator[Removal]:
        question = self.question
        for (position, layer), secret in self.secrets.items():
            if layer:
                continue
            if position in self.contributors:
                yield own_mask(question, position=position, secret=secret)
            else:
                yield self._masks_of(position, secret)

    def _masks_of(self, dropped: int, secret: bytes) -> PairMasks:
        """Return the pair masks of a drop-out with all survivors around it, from its dealt `secret`."""
        survivors = [peer for peer in self._graph.neighbourhood(dropped) if peer in self.contributors]
        mask_key, secrets = self._dealt.pair_secrets(dropped, survivors, self.question.sum_index, secret)
        return masks_with(
            self.question, dropped=dropped, mask_key=mask_key, survivors=survivors, secrets=secrets
        )

    def _remove_noise(self) -> None:
        """Subtract survivors' surplus noise, which would be needed only if more clients had dropped out."""
        layers = self.question.encoding.noise()
        for (position, layer), secret in self.secrets.items():
            if layer:
                seed = self.question.noise_seed(secret, position, layer)
                layers.remove(layer, self._accumulator, KeyStream(seed))

    def _reconstruct(self) -> None:
        """Reconstruct all secrets. Raises `Unrecoverable` if shares that fit their tags do not open a secret:
        then its dealer lied."""
        liars: list[errors.Lie] = []
        weights = lru_cache(maxsize=64)(lagrange_weights)
        for position, rows in self._shares.items():
            columns = self._columns[position in self.survivors]
            for column, layer, shares in zip(columns, (0, *self._surplus), rows, strict=False):
                points = self._points(shares)
                secret = interpolate(weights(points), [shares[x] for x in points])
                if secret is None or not self._matches(position, layer, secret):
                    liars.append(errors.FalseDealing(self._id(position), column))
                    break
                self.secrets[position, layer] = secret
        if liars:
            raise errors.Unrecoverable(liars)

    def _points(self, shares: Mapping[int, int]) -> tuple[int, ...]:
        """Return the points of the shares from which a secret is reconstructed."""
        return tuple(sorted(shares)[: self.question.cohort.threshold])

    # --- evidence ---

    def input_statement(self, position: int) -> Statement:
        """Return what the client at `position` signed with its masked input."""
        return Statement(self._id(position), "masked input", *self._inputs[position])

    def reveal_statement(self, position: int) -> Statement:
        """Return what the client at `position` signed when it revealed shares, right or wrong."""
        return Statement(self._id(position), "reveal", *self._signed_reveals[position])

    def dealt_rows(self, dealer: int, column: int) -> list[bytes]:
        """Return, for each share from which the secret in `column` of the client at `dealer` was
        reconstructed: the id of its holder, the share, and the hashes of the other shares in its row."""
        columns = self._columns[dealer in self.survivors]
        shares = self._shares[dealer][columns.index(column)]
        around, found = self._graph.neighbourhood(dealer), []
        for point in self._points(shares):
            holder = around[point - 1]
            row = self._revealed_rows(holder)[dealer]
            share, others = self.question.dealt_row(dealer, holder).single(row, columns, column)
            found.append(self._id(holder).to_bytes(ID_BYTES, "big") + share + others)
        return found

    def _revealed_rows(self, holder: int) -> dict[int, RevealedRow]:
        """Return what `holder` revealed, by dealer. It was checked when it arrived."""
        if holder not in self._cut:
            reveal, (owed, columns) = self.reveals[holder], self._owed(holder)
            rows = cut_rows(reveal.shares, reveal.hidden, columns, width=self._dealt.columns)
            assert rows is not None  # as it arrived
            self._cut[holder] = dict(zip(owed, rows, strict=True))
        return self._cut[holder]

    def _matches(self, position: int, layer: int, secret: bytes) -> bool:
        """Return whether the client at `position` has published a commitment or public key of `secret`."""
        advert, index = self.question.cohort.adverts[position], self.question.sum_index
        if layer:
            commitment = noise_commitment(secret, owner=advert.member, sum_index=index, layer=layer)
            return commitment == advert.noise_commitment(index, layer)
        if position in self.contributors:
            commitment = seed_commitment(secret, owner=advert.member, sum_index=index)
            return commitment == advert.commitments[index]
        return public_key(mask_key_of(secret, self._dealt.agreement)) == advert.mask_keys[index]

    def _id(self, position: int) -> int:
        return self.question.cohort.ids[position]

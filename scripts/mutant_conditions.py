"""Checks that are not a ``raise``, and how each is removed or weakened by `mutants`.

Each change is a text that a file of ``secagg`` has once, within one line, and what is written instead.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple


class Change(NamedTuple):
    path: str
    text: str
    instead: str


def _signatures() -> Iterator[Change]:
    """A server that does not verify the signatures of one kind of message."""
    call = "verify(self.registry.members[sender], signature"
    for purpose in ("deposit", "masked input", "survivors", "reveal"):
        yield Change("secagg/signed_answers.py", call, f'purpose != "{purpose}" and {call}')


def _in(path: str, text: str, *instead: str) -> Iterator[Change]:
    for each in instead:
        yield Change(f"secagg/{path}.py", text, each)


def _number(path: str, condition: str, least: str) -> Iterator[Change]:
    """A condition that something is more than `least`: it is to be neither weaker nor stronger."""
    yield from _in(path, f"{condition} > {least}", f"{condition} >= {least}", f"{condition} > {least} + 1")


def _changes() -> Iterator[Change]:
    yield from _signatures()

    # Silence in sums with noise: answers are paid for first and once, and values are made to fit.
    yield from _in("answer_recorder", "if question is self._recorded:", "if False:")
    yield from _in("client", "if question.spec.is_private:", "if False:")
    yield from _in("client", "if not question.spec.is_private:", "if False:")
    yield from _in("net/client", "if not await self._charge(asked):", "if False:")
    yield from _in("usable_values", "if not spec.is_private:", "if False:")
    yield from _in("usable_values", "except BaseException as error:", "except Exception as error:")
    yield from _in("clipping_and_fixed_point", "np.maximum(array, 0)", "array")
    yield from _in("clipping_and_fixed_point", "max(int(sums[-1]), total)", "total", "int(sums[-1])")
    yield from _in("clipping_and_fixed_point", "scaled += (sums * total - scaled * most) // most", "pass")

    # Shares and their tags.
    yield from _in("share_exchange", "if tags_digest(tags) != parcel.tags:", "if False:")
    for name in ("dealer", "holder", "sum_index"):
        yield from _in("share_tags", f"4, {name}", "4, 0")
    yield from _in("share_tags", "return _framed_session(session)", 'return _framed_session(b"")')
    yield from _in(
        "dealt_shares", "if dealer in self._tags and dealer not in lost", "if dealer in self._tags"
    )

    # What convicts a client, and what excludes two.
    matches = "not self._matches(position, layer, secret)"
    yield from _in(
        "sum_unmasking", f"if secret is None or {matches}:", "if secret is None:", f"if {matches}:"
    )
    yield from _in("sum_unmasking", "if self._count_without_masks(position, word) != 1:", "if False:")
    yield from _in("sum_unmasking", "if claim != word:", "if False:")
    yield from _number("disputes", "disputed", "corrupt")
    yield from _in("disputes", "if gone.isdisjoint(pair):", "if True:", "if False:")
    yield from _number("convictions", "len(dealers)", "self.most")
    yield from _number("convictions", "len(self.dealt.reporters(each))", "self.most")
    yield from _in("convictions", "tally if error.signed else None", "tally")
    yield from _in("trust_levels", "max(1, min(corrupt, threshold - 1))", "min(corrupt, threshold - 1)")
    yield from _in("trust_levels", "max(1, min(corrupt, threshold - 1))", "max(1, corrupt)")

    # Hybrid keys: deposits, and secrets that X25519 alone does not give.
    disputes = "disputes = [*self._dealt.disputes(), *self._dealt.deposits.disputes()]"
    yield from _in("server", disputes, "disputes = self._dealt.disputes()")
    yield from _in("server", disputes, "disputes = self._dealt.deposits.disputes()")
    yield from _in("server", "self._stranded.update(self.waiting_for)", "pass")
    settled = "self._expel(self._convictions.settle(disputes))"
    yield from _in("server", f"self._pending += {settled}", settled)
    tags = "self._tags(one, other) == self._tags(other, one)"
    yield from _in("deposits", f"(one in back and {tags})", "one in back", f"(one not in back or {tags})")
    yield from _in("client", "self._sharers = {self._position, *deposits}", "pass")
    yield from _in("share_envelopes", "more=inner.secret", 'more=b""')
    yield from _in("share_envelopes", "bound = info + inner.ciphertext", "bound = info")
    yield from _in("self_and_pair_masks", "more=secret", 'more=b""')

    # Evidence: conditions that are joined, and errors that are not caught.
    examiner = "evidence_examiner"
    outside = "shares_from_bytes(rows[at].shares) is None"
    yield from _in(examiner, f"not fits or {outside}", "not fits", outside)
    outside = "(shares is None and shares_from_bytes(row.shares) is None)"
    yield from _in("sum_unmasking", f"not fits or {outside}", "not fits", outside)
    yield from _in(examiner, "secret is None or not case.opens(", "not case.opens(")
    caught = "(SecaggError, ValueError, LookupError)"
    yield from _in(examiner, caught, "(ValueError, LookupError)", "(SecaggError, LookupError)")
    yield from _in(examiner, caught, "(SecaggError, ValueError)")

    # A fork of a client.
    yield from _in("client", "self._memory.check_process()", "pass")

    # Sequences of sums.
    rules = "differencing_rules"
    yield from _in(rules, "enough = 2 * threshold > cohort.size", "enough = 2 * threshold >= cohort.size")
    yield from _in(rules, "// around) - self._policy.corrupt", "// around)")
    least = "max(self._policy.min_contributors, self._policy.min_difference)"
    yield from _in(rules, least, "self._policy.min_contributors", "self._policy.min_difference")
    yield from _in(
        rules, "(bits ^ each).bit_count() < least", "False", "(bits ^ each).bit_count() < least - 1"
    )
    yield from _in(rules, "(bits & ~each).bit_count() < least", "False")
    yield from _in(rules, "        if sequence.rule is Rule.STATIC:", "        if False:")
    yield from _in(rules, "if self._policy.min_difference:", "if False:")
    yield from _in(rules, "policy.min_difference if sequence.rule is Rule.KIND else", "")
    yield from _in(rules, "if computed and self._policy.trust is Trust.MALICIOUS", "if False")
    yield from _in("client", "self._sequences += unchanged", "pass")


CHANGES: Final = tuple(_changes())

"""Signs the ledger of a run, which records what the server asked and released, so that changes are detected.

A signature covers the head (number of rows, and hash of the last row, which depends on all earlier ones), the
digest of the run's settings, and whether the run has a manifest. So nobody can remove the manifest and pass
the run off as one of an earlier version, which had none. Each process that resumes a run may sign with
another key, and the last head of each key is kept. If a process is killed, rows after its last signature are
not signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from secagg.errors import BadSignature
from secagg.hashing import DIGEST_BYTES
from secagg.keys import KEY_BYTES, Identity
from secagg.keys import verify as verify_signature
from secagg.ledger import Head, Row
from secagg.ledger.chained_rows import START, text_of
from sims.config_problems import ConfigError
from sims.records.run_directory import RunDirectory, json_text
from sims.records.run_file_names import LEDGER_HEAD, MANIFEST

_PURPOSE: Final = "head of a run's ledger"
SIGNATURE_BYTES: Final = 64


class AlteredLedger(ConfigError):
    """Raised if the ledger differs from the one that was signed, or if a signature is invalid."""


@dataclass(frozen=True)
class SignedHead:
    """The head of a ledger (its number of rows and last hash), with a signature and the signer's key."""

    head: Head
    key: bytes  # the public key of the signer
    signature: bytes
    has_manifest: bool = False  # whether the run has a manifest; those of earlier versions have none

    @classmethod
    def make(cls, head: Head, *, run: str, identity: Identity, has_manifest: bool = False) -> SignedHead:
        """Return `head` signed by `identity`. Also sign `run`, the digest of the run's settings, and whether
        the run has a manifest."""
        signature = identity.sign(_PURPOSE, *_fields(run, head, has_manifest=has_manifest))
        return cls(head, identity.public, signature, has_manifest)

    def check(self, run: str) -> None:
        """Raise `AlteredLedger` unless `key` signed `head` and `run`, the digest of the run's settings."""
        try:
            fields = _fields(run, self.head, has_manifest=self.has_manifest)
            verify_signature(self.key, self.signature, _PURPOSE, *fields, peer="server")
        except BadSignature:
            raise AlteredLedger(
                f"the signature on {self.head.rows} rows of the ledger is not that of key "
                f"{self.key.hex()[:16]}... for this run: the head, the key or the run was altered"
            ) from None

    def body(self) -> dict[str, Any]:
        return {
            "rows": self.head.rows,
            "hash": self.head.hash.hex(),
            "key": self.key.hex(),
            "signature": self.signature.hex(),
            **({"manifest": True} if self.has_manifest else {}),
        }


@dataclass(frozen=True)
class Verified:
    """The result of `verify`: the signers' public keys, and the number of rows after the last signature."""

    keys: tuple[bytes, ...]  # public keys of the signers; the last one signed last
    unsigned: int  # rows after the last signature
    has_manifest: bool  # whether the run has a manifest, by the last signature


def write_head(run: RunDirectory, signed: SignedHead) -> None:
    """Write `signed` to `ledger.head`. Replace an older head of the same key; keep those of other keys."""
    run.write(LEDGER_HEAD, head_text(run, signed))


def head_text(run: RunDirectory, signed: SignedHead) -> bytes:
    """Return the contents of `ledger.head` after `signed` was added to those that `run` has now."""
    kept = read_heads(run) if (run / LEDGER_HEAD).exists() else []
    return text_of_heads([*(each for each in kept if each.key != signed.key), signed])


def text_of_heads(heads: Sequence[SignedHead]) -> bytes:
    """Return the contents of `ledger.head` with these heads, the newest last."""
    *earlier, last = heads
    return json_text({**last.body(), "earlier": [each.body() for each in earlier]})


def read_heads(run: RunDirectory) -> list[SignedHead]:
    """Return all signed heads of a run, the newest last. Raise `ConfigError` if they cannot be read."""
    content = run.read_json(LEDGER_HEAD)
    earlier = content.get("earlier", [])
    if not isinstance(earlier, list):
        raise AlteredLedger(f"{run / LEDGER_HEAD} is damaged: its earlier heads are no list")
    return [_parse(run, each) for each in (*earlier, content)]


def _parse(run: RunDirectory, body: Any) -> SignedHead:
    try:
        head = Head(row_count(body["rows"]), bytes_of(body["hash"], DIGEST_BYTES))
        key, signature = bytes_of(body["key"], KEY_BYTES), bytes_of(body["signature"], SIGNATURE_BYTES)
        return SignedHead(head, key, signature, body.get("manifest") is True)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AlteredLedger(f"{run / LEDGER_HEAD} is damaged: it holds no signed head of a ledger") from None


def row_count(number: Any) -> int:
    """Return a number of rows. Raise `ValueError` if it cannot be one."""
    if not 0 <= int(number) < 1 << 63:
        raise ValueError
    return int(number)


def bytes_of(text: str, size: int) -> bytes:
    """Return the `size` bytes that `text` has in hex. Raise `ValueError` if it has not."""
    found = bytes.fromhex(text)
    if len(found) != size:
        raise ValueError
    return found


def verify(run: RunDirectory, rows: Sequence[Row], *, digest: str, key: bytes | None = None) -> Verified:
    """Check all signatures on the ledger of a run. Return the signers' keys and the number of unsigned rows.
    `rows` is the ledger, `digest` the digest of the run's settings in `run.json`, and `key` the public key of
    the last signer, if known. Without `key`, an attacker that altered the ledger may have signed it again
    with another key. Raise `AlteredLedger` if a check fails, and `ConfigError` if there is no signature."""
    heads, hashes = read_heads(run), list(row_hashes(rows))
    for signed in heads:
        signed.check(digest)
        if signed.head.rows >= len(hashes):
            raise AlteredLedger(
                f"the ledger has {len(rows)} rows, and {signed.head.rows} were signed: rows were removed"
            )
        if hashes[signed.head.rows] != signed.head.hash:
            raise AlteredLedger(
                f"the first {signed.head.rows} rows of the ledger are not those that were signed"
            )
    if key is not None and heads[-1].key != key:
        raise AlteredLedger(
            f"the ledger was signed by key {heads[-1].key.hex()}, and not by {key.hex()} as it should be"
        )
    last = heads[-1]
    return Verified(tuple(each.key for each in heads), len(rows) - last.head.rows, last.has_manifest)


def row_hashes(rows: Sequence[Row]) -> Iterator[bytes]:
    """Yield the hash of the first 0, 1, 2, ... rows of the ledger."""
    head = START
    yield head.hash
    for row in rows:
        head = head.after(text_of(row.body))
        yield head.hash


def _fields(run: str, head: Head, *, has_manifest: bool) -> tuple[bytes, ...]:
    fields = (run.encode(), head.rows.to_bytes(8, "big"), head.hash)
    return (*fields, MANIFEST.encode()) if has_manifest else fields

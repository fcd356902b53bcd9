"""Defines the names of all files in a run directory."""

from __future__ import annotations

from typing import Final

RUN: Final = "run.json"  # status and facts of the run
SCENARIO: Final = "scenario.toml"  # the settings as they were run
LEDGER: Final = "ledger"  # what the server asked and released
LEDGER_SEAL: Final = "ledger-seal"
LEDGER_HEAD: Final = "ledger.head"  # the signed head
LEDGER_LOG: Final = "ledger-wal"  # of SQLite, like the next one: only while a ledger is in use
LEDGER_INDEX: Final = "ledger-shm"
MANIFEST: Final = "manifest.json"  # size and hash of every file, signed
SUMS: Final = "sums.jsonl"  # records of sessions and sums
METRICS: Final = "metrics.jsonl"  # one line for each round
METRICS_TABLE: Final = "metrics.csv"
CLIENTS: Final = "clients.json"  # final scores of each client
SPEND: Final = "spend.json"  # privacy spending of server and clients
CANARIES: Final = "canaries.json"  # lower bounds on epsilon
CHECKPOINT: Final = "checkpoint"
MODEL: Final = "model.npz"
NAMED_MODEL: Final = "model.safetensors"  # of a served run: the same as a state dict, by name
OUTCOME: Final = "outcome"  # of a served run: what its clients are told at the end
RESULT: Final = "result.json"
REPORT: Final = "report.html"
LOCK: Final = ".lock"  # a file, because ledgers lock the directory itself while they are created

# All files that a run writes. They are removed when the run starts anew.
RUN_FILES: Final = (
    SCENARIO, RUN, LEDGER, LEDGER_SEAL, LEDGER_LOG, LEDGER_INDEX, LEDGER_HEAD, SUMS, METRICS,
    METRICS_TABLE, CLIENTS, SPEND, CHECKPOINT, MODEL, NAMED_MODEL, OUTCOME, RESULT, CANARIES, REPORT,
    MANIFEST,
)  # fmt: skip


def draft_of(name: str) -> str:
    """Return the temporary name under which a file is written before it replaces the old one."""
    return f".{name}.draft"

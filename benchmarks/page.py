"""The page of benchmarks: Markdown, every number of which comes from a survey."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchmarks.flower_text import flower_section
from benchmarks.markdown import paragraphs
from benchmarks.page_measurements import Survey
from benchmarks.plots import draw_all
from benchmarks.sections import (
    bars_section,
    clients_section,
    dim_section,
    machine_section,
    packing_section,
    primitives_section,
)
from benchmarks.sum_setting import SumSetting
from secagg.errors import LocalError

INTRODUCTION: Final = """\
# Benchmarks

What secure sums cost on one machine, beside what their masks alone cost and beside Flower's SecAgg+.
`make bench` writes this page and its plots; no number in it is typed by hand. In short, n is the number of
clients, d that of the elements of a vector, and k that of the neighbours with whom a client shares keys and
secrets."""

REHEARSAL: Final = "**This is a rehearsal: with sums as small as these, the figures say nothing.**"

METHOD: Final = """\
## What is measured

Real machines, client and server, exchange real frames: one session with one sum under `curious_server`. A
tenth of the clients may be corrupt, and a tenth vanish after they shared their secrets and before they mask,
which is when it costs the server most.

* **Times** are CPU seconds, so that waiting does not count: of a client those of its calls, as the median
  over all clients, and of the server those of its process and its workers. Sums that are soon done are run
  several times, and the median is reported. The clock is named where it is meant; then the best of several
  runs is reported, since a clock also counts what else the machine does.
* **Set-up** is what comes before the first sum: key pairs, agreements, Shamir's shares, envelopes sealed and
  opened. **Encode** turns floats into residues: clip, scale, round at random. **Mask** turns residues into a
  message that is ready to be sent: agreements, masks expanded and added, packing. **Unmask** goes from shares
  to the total: secrets reconstructed and verified, agreements made for those who left, masks expanded and
  taken off.
* **Limit** is what the same masks cost with nothing around them: as many bytes of keystream from bare
  AES-128-CTR, the best over blocks of 64 KiB to 4 MiB, and one addition of numpy for each mask, in the same
  run and in the same process. That addition takes whole vectors, and a machine adds block by block what is
  still in the cache: with vectors longer than the cache, it can come out below the limit.
* **Processes**: sums in one process and in two take turns. Two cores are not always twice as fast as one,
  least of all those of a virtual machine, so between any two sums bare AES and additions show what a second
  process gains at that time: each counts the blocks that it gets done in a tenth of a second, alone and
  beside the other. Nothing is promised of the machine, and no bar is lowered for it.
* **Bytes up** are all that a client sends, in all stages; ideal are d times the bits of an element.
* **Server peak** is how much the resident memory of a process grew that holds the server and nothing else."""

REPEAT: Final = """\
## How to repeat it

`make bench` runs everything and writes this page anew. Single sums, as JSON and without rounding:"""


def check_writable(page: Path) -> None:
    """Raise `LocalError` if the page could not be written in the end."""
    folder = page.parent
    if not folder.is_dir():
        raise LocalError(f"there is no folder {folder}")
    if page.is_dir() or not all(os.access(path, os.W_OK) for path in (folder, page) if path.exists()):
        raise LocalError(f"cannot write to {page}")


def write_page(found: Survey, page: Path) -> None:
    """Write the page, and its plots beside it."""
    draw_all(found, lambda name: page.with_name(_plot(page.stem, name)))
    page.write_text(page_text(found, page.stem), encoding="utf-8")


def _plot(stem: str, name: str) -> str:
    return f"{stem}-{name}.svg"


def page_text(found: Survey, stem: str) -> str:
    """Return the text of a page of that name; its plots have names that begin with it."""
    text = paragraphs(
        INTRODUCTION,
        *([REHEARSAL] if found.plan.rehearsal else []),
        machine_section(found),
        METHOD,
        bars_section(found),
        flower_section(found),
        dim_section(found, _plot(stem, "dim")),
        clients_section(found, _plot(stem, "clients")),
        packing_section(found, _plot(stem, "packing")),
        primitives_section(found),
        _repeat(found),
    )
    return f"{text}\n"


def _repeat(found: Survey) -> str:
    plan = found.plan
    lengths, primitives = plan.lengths, plan.primitives
    cohorts = [plan.cohort(clients) for clients in plan.compared]
    long = [lengths.sum_of(plan.long_dim), plan.narrow, plan.in_processes(2), plan.noisy]
    dims = ",".join(map(str, lengths.dims))
    commands = [
        *map(_command, (*long, plan.crowd, *cohorts)),
        f"python -m benchmarks peers --clients {lengths.clients} --neighbours {lengths.neighbours} "
        f"--corrupt {lengths.corrupt} --dropout {lengths.dropout} --dims {dims} --json",
        f"python -m benchmarks primitives --clients {primitives.clients} --dim {primitives.dim} "
        f"--sums {primitives.sums} --bits {primitives.bits} --json",
    ]
    return paragraphs(REPEAT, "\n".join(f"    {command}" for command in commands))


def _command(setting: SumSetting) -> str:
    """Return the command that measures one sum of the page again."""
    options = {
        "clients": setting.clients,
        "dim": setting.dim,
        "neighbours": "auto" if setting.neighbours is None else setting.neighbours,
        "bits": setting.bits,
        "corrupt": setting.corrupt,
        "dropout": setting.dropout,
        "trust": setting.trust,
        "processes": setting.processes,
    }
    words = [f"--{name} {value}" for name, value in options.items()] + ["--noise"] * setting.noise
    return f"python -m benchmarks sum {' '.join(words)} --json"

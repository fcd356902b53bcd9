"""The same sums by us and by Flower's SecAgg+, in turns on the same machine.

Flower gets the ring and the threshold of our session. Its server unmasks in seconds what takes ours
milliseconds, so ours runs several times, half of them before Flower and half of them after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from benchmarks import flower, sums
from benchmarks.flower import FlowerCosts
from benchmarks.repeats import typical
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import SumReport
from secagg import Trust
from sims.console_progress import OnProgress, labelled

BITS = 32  # of Flower's ring


@dataclass(frozen=True, kw_only=True)
class PeersSetting:
    """One cohort, and the lengths of the vectors that it sums."""

    clients: int
    neighbours: int
    corrupt: int
    dropout: Fraction
    dims: tuple[int, ...]

    def sum_of(self, dim: int) -> SumSetting:
        return SumSetting(
            clients=self.clients,
            dim=dim,
            bits=BITS,
            corrupt=self.corrupt,
            dropout=self.dropout,
            trust=Trust.CURIOUS,
            neighbours=self.neighbours,
        )


@dataclass(frozen=True)
class Row:
    """One vector's length: our medians, and Flower's costs. A ratio is Flower's figure over ours."""

    ours: SumReport
    flower: FlowerCosts

    @property
    def client_mask_cpu_s(self) -> float:
        """The time of our client from floats to a masked message. Flower's figure starts there too."""
        return self.ours.client_encode_cpu_s + self.ours.client_mask_cpu_s

    @property
    def client_cpu_s(self) -> tuple[float, float]:
        """The time of a whole client, ours and Flower's: their stages do not match."""
        ours, flower = self.ours, self.flower
        before, after = ours.client_setup_cpu_s + ours.client_query_cpu_s, ours.client_reveal_cpu_s
        theirs = flower.client_setup_cpu_s + flower.client_mask_cpu_s + flower.client_unmask_cpu_s
        return before + self.client_mask_cpu_s + after, theirs

    @property
    def server_cpu_s(self) -> tuple[float, float]:
        """The time of a whole server, ours and Flower's."""
        ours, flower = self.ours, self.flower
        theirs = flower.server_setup_cpu_s + flower.server_sum_cpu_s + flower.server_unmask_cpu_s
        return ours.server_setup_cpu_s + ours.server_sum_cpu_s + ours.server_unmask_cpu_s, theirs

    @property
    def majority(self) -> int:
        """The usual threshold of Flower; a client keeps one share of its secret itself."""
        return (self.ours.neighbours + 1) // 2 + 1

    @property
    def client_mask_ratio(self) -> float:
        return self.flower.client_mask_cpu_s / self.client_mask_cpu_s

    @property
    def server_unmask_ratio(self) -> float:
        return self.flower.server_unmask_cpu_s / self.ours.server_unmask_cpu_s

    @property
    def bytes_ratio(self) -> float:
        return self.flower.bytes_up / self.ours.bytes_up

    @property
    def client_ratio(self) -> float:
        ours, theirs = self.client_cpu_s
        return theirs / ours

    @property
    def server_ratio(self) -> float:
        ours, theirs = self.server_cpu_s
        return theirs / ours

    def as_json(self) -> dict[str, Any]:
        ours, theirs = self.ours.as_json(), asdict(self.flower)
        return {
            "dim": self.ours.dim,
            "ours": ours | {"client_encode_and_mask_cpu_s": self.client_mask_cpu_s},
            "flower": theirs | {"right": self.flower.right},
            "client_mask_ratio": self.client_mask_ratio,
            "server_unmask_ratio": self.server_unmask_ratio,
            "bytes_ratio": self.bytes_ratio,
            "client_ratio": self.client_ratio,
            "server_ratio": self.server_ratio,
        }


@dataclass(frozen=True)
class PeersReport:
    """A row for each length of the vector. Graph and threshold are the same in all of them."""

    setting: PeersSetting
    rows: Sequence[Row]

    @property
    def peer(self) -> str:
        return f"flwr {self.rows[0].flower.version}"

    def as_json(self) -> dict[str, Any]:
        ours = self.rows[0].ours
        return {
            "clients": ours.clients,
            "neighbours": ours.neighbours,
            "threshold": ours.threshold,
            "dropout": float(self.setting.dropout),
            "peer": self.peer,
            "rows": [row.as_json() for row in self.rows],
        }


def measure(setting: PeersSetting, progress: OnProgress) -> PeersReport:
    """Measure all lengths. Raises `FlowerError` before anything runs if Flower is missing."""
    flower.check_installed()
    rows = [
        compare(setting.sum_of(dim), labelled(progress, f"{dim:,} elements"), runs=runs_for(dim))
        for dim in setting.dims
    ]
    return PeersReport(setting, rows)


def runs_for(dim: int) -> int:
    """Return the number of our runs. Longer vectors take longer, and vary less."""
    return 5 if dim <= 100_000 else 3 if dim <= 1_000_000 else 1


def compare(setting: SumSetting, progress: OnProgress, *, runs: int) -> Row:
    early = [sums.measure(setting, progress) for _ in range((runs + 1) // 2)]
    progress("Flower", 0, 1)
    costs = measure_like(early[0], setting.dropout)
    late = [sums.measure(setting, progress) for _ in range(runs // 2)]
    return Row(typical([*early, *late]), costs)


def measure_like(ours: SumReport, dropout: Fraction, *, threshold: int | None = None) -> FlowerCosts:
    """Run Flower on a ring like that of our session, with its threshold unless another is given."""
    return flower.measure_flower(
        clients=ours.clients,
        dim=ours.dim,
        neighbours=ours.neighbours,
        threshold=threshold or ours.threshold,
        dropout=dropout,
    )

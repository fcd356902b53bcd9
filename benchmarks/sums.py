"""The cost of one secure sum: real machines, with the server in a process of its own.

Clients vanish after they shared their secrets and before they mask. These drop-outs are the most expensive,
because the server removes one mask for each neighbour of such a client. The time of client and server for
masks is compared with the least that the same masks can cost (`benchmarks.limits`), in the same run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from benchmarks.encoding import EncodingCosts, measure_encoding
from benchmarks.limits import Limit, Mask
from benchmarks.remote_server import RemoteServer, server_process
from benchmarks.simulated_clients import Chore, Crowd
from benchmarks.sum_setting import SumSetting, make_clients
from secagg.residue_packing import packed_bytes
from secagg.transitions import ServerState
from sims.console_progress import OnProgress

_SEED: Final = 11
_S: Final = ServerState


@dataclass(frozen=True, kw_only=True)
class SumReport:
    """Medians over clients; seconds of CPU time unless a name says otherwise."""

    exact: bool  # the total is the plain sum of what the survivors encoded, to the last bit
    clients: int
    dim: int
    bits: int
    trust: str
    agreement: str
    graph: str
    neighbours: int
    threshold: int
    corrupt: int
    dropped: int
    processes: int
    client_masks: int
    server_masks: int
    client_setup_cpu_s: float
    client_query_cpu_s: float
    client_encode_cpu_s: float
    client_mask_cpu_s: float
    client_limit_cpu_s: float
    client_confirm_cpu_s: float
    client_reveal_cpu_s: float
    server_setup_cpu_s: float
    server_sum_cpu_s: float
    server_confirm_cpu_s: float
    server_unmask_cpu_s: float
    server_unmask_wall_s: float
    server_limit_cpu_s: float
    server_peak_bytes: int
    bytes_up: int
    bytes_down: int
    bytes_ideal: int
    setup_bytes_up: int  # included in the bytes above
    setup_bytes_down: int
    encoding: EncodingCosts | None = None  # of a sum with noise

    @property
    def client_mask_over_limit(self) -> float:
        return self.client_mask_cpu_s / self.client_limit_cpu_s

    @property
    def server_unmask_over_limit(self) -> float:
        return self.server_unmask_cpu_s / self.server_limit_cpu_s

    @property
    def bytes_over_ideal(self) -> float:
        return self.bytes_up / self.bytes_ideal

    def as_json(self) -> dict[str, Any]:
        ratios = ("client_mask_over_limit", "server_unmask_over_limit", "bytes_over_ideal")
        found = {**asdict(self), **{name: getattr(self, name) for name in ratios}}
        del found["encoding"]
        return found if self.encoding is None else found | self.encoding.as_json()


def measure(setting: SumSetting, progress: OnProgress) -> SumReport:
    """Run one session of one sum. Raises `BenchmarkFailed` if no total was released."""
    clients, registry = make_clients(setting)
    crowd = Crowd(clients, setting.dim)
    with server_process() as server:
        server.begin(setting, registry)
        session = _Session(setting, crowd, server, progress)
        session.set_up()
        session.limit.sample()
        session.mask()
        session.limit.sample()
        session.unmask()
        return _report(session)


class _Session:
    """The stages of a session, each with the clients that are still there."""

    def __init__(self, setting: SumSetting, crowd: Crowd, server: RemoteServer, progress: OnProgress) -> None:
        self.setting = setting
        self.crowd = crowd
        self.server = server
        self.limit = Limit(Mask.of(setting.spec))  # of a client
        self._progress = progress
        everybody = range(setting.clients)
        dropped = frozenset(random.Random(_SEED).sample(everybody, setting.dropped))
        self._survivors = [member for member in everybody if member not in dropped]
        self._present = frozenset(everybody)
        self.setup_bytes = (0, 0)  # up and down, of one client

    @property
    def survivors(self) -> Sequence[int]:
        return self._survivors

    def set_up(self) -> None:
        self._hand_out("keys", Chore.SETUP)
        self.server.close_stage()
        self._hand_out("shares", Chore.SETUP)
        self.server.close_stage()
        self._hand_out("envelopes", Chore.SETUP)
        if self.server.state == ServerState.DEPOSITING.value:
            self.server.close_stage()
        self.setup_bytes = self.crowd.median_bytes(range(self.setting.clients))

    def mask(self) -> None:
        self._present = frozenset(self._survivors)
        self.server.ask()
        self._hand_out("masked inputs", Chore.QUERY)

    def unmask(self) -> None:
        self.server.close_stage()
        if self.server.state == ServerState.CONFIRMING.value:
            self._hand_out("confirmations", Chore.CONFIRM)
            self.server.close_stage()
        self._hand_out("reveals", Chore.REVEAL)
        self._progress("unmasking", 0, 1)
        self.server.close_stage()

    def _hand_out(self, text: str, chore: Chore) -> None:
        """Pass the frames of the server to the clients that are there, and their replies to the server."""
        done = 0
        for receivers, frame in self.server.outgoing():
            for member in self._present.intersection(receivers):
                for reply in self.crowd.turn(member, frame, chore):
                    self.server.receive(member, reply)
                done += 1
                self._progress(text, done, len(self._present))


def _report(session: _Session) -> SumReport:
    setting, crowd, server = session.setting, session.crowd, session.server
    costs = server.costs()  # first, because it has the peak of the memory
    client_masks = round(crowd.median_masks())
    up, down = crowd.median_bytes(session.survivors)
    return SumReport(
        exact=np.array_equal(server.residues(setting.bits), crowd.plain.residues(setting.bits)),
        clients=setting.clients,
        dim=setting.dim,
        bits=setting.bits,
        trust=str(setting.trust),
        agreement=str(setting.agreement),
        graph="ring" if costs.ring else "complete",
        neighbours=costs.neighbours,
        threshold=costs.threshold,
        corrupt=setting.corrupt,
        dropped=setting.dropped,
        processes=setting.processes,
        client_masks=client_masks,
        server_masks=costs.masks,
        client_setup_cpu_s=crowd.median_seconds(Chore.SETUP),
        client_query_cpu_s=crowd.median_seconds(Chore.QUERY),
        client_encode_cpu_s=crowd.median_seconds(Chore.ENCODE),
        client_mask_cpu_s=crowd.median_seconds(Chore.MASK),
        client_limit_cpu_s=session.limit.cpu_seconds(client_masks),
        client_confirm_cpu_s=crowd.median_seconds(Chore.CONFIRM),
        client_reveal_cpu_s=crowd.median_seconds(Chore.REVEAL),
        server_setup_cpu_s=costs.cpu_in(_S.INVITING, _S.SHARING, _S.DEPOSITING),
        server_sum_cpu_s=costs.cpu_in(_S.READY, _S.MASKING),
        server_confirm_cpu_s=costs.cpu_in(_S.CONFIRMING),
        server_unmask_cpu_s=costs.cpu_in(_S.UNMASKING),
        server_unmask_wall_s=costs.wall[_S.UNMASKING.value],
        server_limit_cpu_s=server.limit_cpu_seconds(costs.masks),
        server_peak_bytes=costs.peak_bytes,
        bytes_up=up,
        bytes_down=down,
        bytes_ideal=packed_bytes(setting.dim, setting.bits),
        setup_bytes_up=session.setup_bytes[0],
        setup_bytes_down=session.setup_bytes[1],
        encoding=measure_encoding(setting) if setting.noise else None,
    )

"""``python -m benchmarks sum``: that it counts what it says. Nothing here depends on how long things take."""

import json
import sys
import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import ArrayLike

from benchmarks import limits
from benchmarks.__main__ import main
from benchmarks.limits import Limit, Mask
from benchmarks.remote_server import RemoteServer
from benchmarks.server_worker import Counting
from benchmarks.simulated_clients import Chore, Crowd
from benchmarks.sum_setting import KIND, SumSetting
from benchmarks.sums import measure
from secagg import ClientMachine, Trust, mask_keystream, preflight
from secagg.events import Answer, Asked, ClientStep
from secagg.input_encoding import Encoding
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.mask_pool import ProcessPool
from secagg.residue_packing import Residues
from secagg.self_and_pair_masks import PairMasks, SelfMask
from secagg.session_params import SessionParams
from sims.console_progress import bar, quiet

pytestmark = pytest.mark.slow  # measures real sums

SIZE = 10
DROPPED = 2
SMALL = ("--clients", str(SIZE), "--dim", "9", "--dropout", "1/5")


def setting(**changes: Any) -> SumSetting:
    usual: dict[str, Any] = {
        "clients": SIZE,
        "dim": 9,
        "bits": 32,
        "corrupt": 1,
        "dropout": Fraction(1, 5),
        "trust": Trust.CURIOUS,
    }
    return SumSetting(**(usual | changes))


# --- what is counted ---


@pytest.mark.parametrize("trust", list(Trust))
def test_complete_graph(trust: Trust) -> None:
    chosen = setting(trust=trust)

    report = measure(chosen, quiet)

    assert report.exact
    assert (report.graph, report.neighbours, report.dropped) == ("complete", SIZE - 1, DROPPED)
    survivors = SIZE - DROPPED
    assert report.client_masks == SIZE
    assert report.server_masks == survivors + DROPPED * survivors
    outlook = preflight(
        chosen.table, SIZE, SessionParams(trust=trust, corrupt=1, dropout=chosen.dropout, sums=1)
    )
    assert report.threshold == outlook.threshold
    assert report.bytes_up == outlook.setup_bytes_up + outlook.sum_bytes_up[KIND]
    assert report.bytes_ideal == 9 * 4


def test_ring() -> None:
    report = measure(setting(clients=40, dropout=Fraction(1, 40), neighbours=12), quiet)

    assert report.exact
    assert report.graph == "ring"
    assert 12 <= report.neighbours < 39
    assert report.client_masks == report.neighbours + 1
    assert report.server_masks == 39 + report.neighbours, (
        "the only one to drop out had neighbours who did not"
    )


def test_bits_that_fill_no_byte() -> None:
    report = measure(setting(bits=13), quiet)

    assert report.exact
    assert report.bytes_ideal == 15  # 117 bits


def test_consistency_round_is_counted_where_there_is_one() -> None:
    for trust in Trust:
        report = measure(setting(trust=trust), quiet)

        spent = (report.client_confirm_cpu_s > 0, report.server_confirm_cpu_s > 0)
        assert spent == (trust is Trust.MALICIOUS,) * 2


def test_every_other_cost_is_there() -> None:
    found = measure(setting(), quiet).as_json()

    costs = {name for name in found if name.endswith(("_cpu_s", "_wall_s"))}
    assert costs == {
        "client_setup_cpu_s",
        "client_query_cpu_s",
        "client_encode_cpu_s",
        "client_mask_cpu_s",
        "client_limit_cpu_s",
        "client_confirm_cpu_s",
        "client_reveal_cpu_s",
        "server_setup_cpu_s",
        "server_sum_cpu_s",
        "server_confirm_cpu_s",
        "server_unmask_cpu_s",
        "server_unmask_wall_s",
        "server_limit_cpu_s",
    }
    assert all(found[name] > 0 for name in costs - {"client_confirm_cpu_s", "server_confirm_cpu_s"})
    assert found["client_mask_over_limit"] == found["client_mask_cpu_s"] / found["client_limit_cpu_s"]
    assert found["server_unmask_over_limit"] == found["server_unmask_cpu_s"] / found["server_limit_cpu_s"]
    assert found["bytes_over_ideal"] == found["bytes_up"] / found["bytes_ideal"]


def test_server_grows_with_the_vector() -> None:
    """The machine holds at least one accumulator; the vectors of all clients would be more than it may."""
    dim = 300_000

    report = measure(setting(dim=dim, clients=20), quiet)

    assert 4 * dim < report.server_peak_bytes < 10 * 4 * dim


def test_several_processes() -> None:
    report = measure(setting(processes=2), quiet)

    assert report.exact
    assert report.processes == 2
    assert report.server_masks == 24


@pytest.mark.parametrize("bits", [20, 64])
def test_another_total_is_not_exact(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Not even if it differs by one, which at 64 bits no float would tell."""
    residues = RemoteServer.residues

    def other(server: RemoteServer, bits: int) -> Residues:
        changed = residues(server, bits).copy()
        changed[-1] ^= 1
        return changed

    monkeypatch.setattr(RemoteServer, "residues", other)

    assert not measure(setting(bits=bits), quiet).exact


def test_progress_reaches_the_end_of_every_stage() -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    measure(
        setting(trust=Trust.MALICIOUS), lambda text, done, of: seen.setdefault(text, []).append((done, of))
    )

    survivors = SIZE - DROPPED
    everybody = [(done, SIZE) for done in range(1, SIZE + 1)]
    those = [(done, survivors) for done in range(1, survivors + 1)]
    assert seen == {
        "keys": everybody,
        "shares": everybody,
        "envelopes": everybody,
        "masked inputs": those,
        "confirmations": those,
        "reveals": those,
        "unmasking": [(0, 1)],
    }


# --- the clients' books ---


class FakeClock:
    """Goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeClient:
    """Encodes and masks with the package's own functions, which take as long as a clock is told."""

    member = 3

    def __init__(self, clock: FakeClock, encoding: Encoding) -> None:
        self._clock = clock
        self._encoding = encoding

    def receive(self, _frame: bytes) -> ClientStep:
        self._clock.now += 0.25
        asked = Asked(0, 0, KIND, b"", self._encoding.spec, invited=1)
        return ClientStep((b"ab",), (asked,))

    def answer(self, _sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        encoded = self._encoding.encode(values, KeyStream(bytes(SEED_BYTES)))
        mask_keystream.apply_masks(encoded.residues, plus=[bytes(SEED_BYTES)] * 2, minus=[bytes(SEED_BYTES)])
        self._clock.now += 1.0
        return Answer(b"abc", {})


def test_encoding_is_not_masking(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, encoding = FakeClock(), Encoding(setting().spec, cohort=1)
    monkeypatch.setattr(time, "thread_time", clock)
    encode = Encoding.encode

    def slowly(*args: Any) -> Any:
        clock.now += 8.0
        return encode(*args)

    monkeypatch.setattr(Encoding, "encode", slowly)
    books = Crowd({3: cast(ClientMachine, FakeClient(clock, encoding))}, dim=9)

    replies = books.turn(3, b"frame", Chore.QUERY)

    assert replies == [b"ab", b"abc"]
    spent = {chore: books.median_seconds(chore) for chore in Chore}
    assert spent == {
        Chore.SETUP: 0.0,
        Chore.QUERY: 0.25,
        Chore.ENCODE: 8.0,
        Chore.MASK: 1.0,
        Chore.CONFIRM: 0.0,
        Chore.REVEAL: 0.0,
    }
    assert books.median_masks() == 3
    assert books.median_bytes([3]) == (5, 5)
    assert Encoding.encode is slowly, "patched only while somebody answers"


# --- the limit ---


class FakeEncryptor:
    """Remembers how much it was given."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def update_into(self, given: memoryview, made: memoryview) -> None:
        assert len(given) == len(made)
        self.lengths.append(len(given))


class FakeCipher:
    made: list[FakeEncryptor]

    def __init__(self, *_: object) -> None: ...

    def encryptor(self) -> FakeEncryptor:
        self.made.append(FakeEncryptor())
        return self.made[-1]


def test_mask_has_a_word_for_each_element_and_the_hidden_count() -> None:
    assert Mask.of(setting(dim=5, bits=20).spec).bytes == 5 * 4 + 8
    assert Mask.of(setting(dim=5, bits=40).spec).bytes == 5 * 8 + 8


def test_limit_reads_every_byte_in_every_size_of_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeCipher, "made", [], raising=False)
    monkeypatch.setattr(limits, "Cipher", FakeCipher)
    mask = Mask.of(setting(dim=1_000_000).spec)

    Limit(mask).sample()

    largest = [max(each.lengths) for each in FakeCipher.made]
    assert largest == [1024 * size for size in (64, 128, 256, 512, 1024, 2048, 4096)]
    masks_timed = 2**27 // mask.bytes
    assert {sum(each.lengths) for each in FakeCipher.made} == {masks_timed * mask.bytes}


def test_limit_is_the_best_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    keystream, additions = iter([*[9.0] * 6, 5.0, *[7.0] * 7]), iter([3.0, 2.0])
    monkeypatch.setattr(limits, "_keystream", lambda *_: next(keystream))
    monkeypatch.setattr(limits, "_additions", lambda *_: next(additions))
    limit = Limit(Mask.of(setting(dim=1 << 25).spec))  # of which one mask is a sample

    limit.sample()
    limit.sample()

    assert limit.cpu_seconds(1) == 7.0
    assert limit.cpu_seconds(10) == 70.0


def test_masks_of_the_server_are_counted() -> None:
    pair = (bytes(range(32)), b"info", True, b"")
    expander = Counting(1)

    with expander:
        expander.take_off((), [SelfMask(bytes(32), b"info"), PairMasks(bytes(32), (pair, pair))], salt=b"")

    assert expander.masks == 3
    assert expander.cpu_seconds() == 0.0


def test_the_workers_of_the_server_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[ProcessPool] = []
    monkeypatch.setattr(ProcessPool, "get_ready", lambda pool: woken.append(pool))
    with Counting(2) as expander:
        expander.get_ready()
    assert len(woken) == 1


# --- the command ---


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sum", *SMALL, "--corrupt", "0.11", "--bits", "20", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["exact"] is True
    assert (found["clients"], found["dim"], found["bits"], found["processes"]) == (SIZE, 9, 20, 1)
    assert (found["corrupt"], found["dropped"], found["trust"]) == (1, DROPPED, "curious_server")


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    assert main(["sum", *SMALL, "--trust", "malicious_server", "--corrupt", "0"]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert "10 clients of whom 0 may collude with a malicious_server and 2 vanish before they mask" in out
    assert "complete graph of 9 neighbours" in out
    for row in ("set-up", "confirming"):
        assert f"client: {row}" in out
        assert f"server: {row}" in out
    assert "client: 10 masks on" in out
    assert "server: 24 masks off" in out
    assert "the total equals the plain sum" in out


def test_wrong_total_is_said_aloud(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteServer, "residues", lambda _, __: np.zeros(9))

    assert main(["sum", *SMALL]) == 0

    assert "the total DIFFERS FROM the plain sum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--bits", "3"), "part 'update' has 3 bits, but 50 clients need 7"),
        (("--neighbours", "4", "--trust", "malicious_server"), "neighbours cannot be chosen under malicious"),
        (("--corrupt", "49"), "50 clients with 49 colluders: a total could show one honest input"),
        (("--dropout", "1"), "'1' is not at least 0 and below 1"),
        (("--corrupt", "x"), "neither a whole number nor a part of all"),
        (("--processes", "65"), "'65' is not a whole number from 1 to 64"),
        (("--neighbours", "1"), "'1' is not a whole number from 2"),
        (("--dim", "4", "--dropout", "0.9"), "there was no total: 50 clients with 5 colluders"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert main(["sum", *options]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with bar() as progress:
        progress("masked inputs", 1, 2)
    assert capsys.readouterr() == ("", "")

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with bar() as progress:
        progress("masked inputs", 0, 2)
        progress("masked inputs", 1, 2)
        progress("masked inputs", 2, 2)

    out, err = capsys.readouterr()
    assert out == ""
    assert "masked inputs" in err
    assert "2/2" in err

"""The command: that it counts what it says it counts. Nothing here depends on how long things take."""

import json
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from benchmarks import flower, network, noise, overhead, peers, primitives, sums, training
from benchmarks.__main__ import main
from benchmarks.costs import AROUND, PRIMITIVES, Cost
from benchmarks.cpu_breakdown import Balance, Entry
from benchmarks.meter import SERVER, Phase, Recorder, Stopwatch
from benchmarks.network import NetworkReport
from benchmarks.noise import NoiseReport, NoiseSetting
from benchmarks.noise import measure as measure_noise
from benchmarks.overhead import OverheadReport, OverheadSetting
from benchmarks.patches import Function, Patches
from benchmarks.peers import PeersReport, PeersSetting, Row
from benchmarks.primitive_replay import LEAVES, Leaf
from benchmarks.primitives import OnProgress, PrimitivesReport, Setting, measure
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import measure as measure_sum
from benchmarks.training import TrainingCosts, TrainingReport, TrainingSetting
from secagg import ClientMachine, Trust, client_checks, hashing, keys, preflight
from secagg.session_params import SessionParams
from sims.console_progress import OnProgress as Bar
from sims.drill.config import DrillConfig
from sims.runtime.ray import cluster
from tests.benchmarks import overhead_reports
from tests.benchmarks.reports import FLOWER, OURS

pytestmark = pytest.mark.slow  # measures real sums

SIZE = 6
SUMS = 2
SMALL = ("--clients", str(SIZE), "--dim", "9", "--sums", str(SUMS))


def recorded(trust: Trust) -> Recorder:
    recorder = Recorder((0, SERVER))
    primitives.run_session(Setting(SIZE, 9, SUMS, 32), trust, recorder)
    return recorder


def calls(recorder: Recorder, owner: int, phase: Phase) -> dict[Cost, int]:
    """How often the primitives were called."""
    replays = recorder.replays[owner, phase]
    return {cost: len(replays[cost]) for cost in PRIMITIVES if replays[cost] and cost is not Cost.HASHING}


def test_client_calls_are_all_recorded() -> None:
    """The counts of the protocol: one key per sum and one for envelopes, one agreement per pair and use."""
    peers = SIZE - 1
    recorder = recorded(Trust.MALICIOUS)

    assert calls(recorder, 0, Phase.SETUP) == {
        Cost.DH: 1 + SUMS + 1 + peers,  # public keys, the channel's secret key, agreements
        Cost.HKDF: 2 * peers,
        Cost.SHAMIR: 2 * SUMS,
        Cost.AEAD: 2 * peers,
        Cost.SIGN: 3,  # advert, key list and share tags
        Cost.VERIFY: SIZE + peers,
    }
    assert calls(recorder, 0, Phase.SUM) == {
        Cost.DH: SUMS * (1 + peers),
        Cost.HKDF: SUMS * (1 + peers),
        Cost.SIGN: 3 * SUMS,  # input, survivors and reveal
        Cost.VERIFY: SUMS * SIZE,
        Cost.MASKS: SUMS,  # a call puts on all the masks of a sum
    }


def test_curious_client_signs_nothing() -> None:
    recorder = recorded(Trust.CURIOUS)

    for phase in Phase:
        assert not {Cost.SIGN, Cost.VERIFY} & calls(recorder, 0, phase).keys()


def test_server_calls_are_all_recorded() -> None:
    recorder = recorded(Trust.MALICIOUS)

    assert calls(recorder, SERVER, Phase.SETUP) == {Cost.VERIFY: 3 * SIZE}
    assert calls(recorder, SERVER, Phase.SUM) == {
        Cost.HKDF: SUMS * SIZE,
        Cost.SHAMIR: SUMS * (SIZE + 1),  # the weights once, then a secret each
        Cost.VERIFY: 3 * SUMS * SIZE,
        Cost.MASKS: SUMS,
    }


def test_only_the_chosen_machines_are_recorded() -> None:
    assert {owner for owner, _ in recorded(Trust.CURIOUS).replays} == {0, SERVER}


def test_stopwatch_sees_every_machine() -> None:
    watch = Stopwatch()

    primitives.run_session(Setting(SIZE, 9, SUMS, 32), Trust.CURIOUS, watch)

    owners = (SERVER, *range(SIZE))
    assert set(watch.seconds) == {(owner, phase) for owner in owners for phase in Phase}
    assert all(seconds > 0 for seconds in watch.seconds.values())


@pytest.mark.parametrize("trust", list(Trust))
def test_session_sends_and_releases_what_it_should(trust: Trust) -> None:
    setting = Setting(SIZE, 9, SUMS, 32)

    outcome = primitives.run_session(setting, trust, Stopwatch())

    outlook = preflight(
        setting.table(), SIZE, SessionParams(trust=trust, corrupt=0, dropout=primitives.DROPOUT, sums=SUMS)
    )
    assert outcome.traffic.setup_up == outlook.setup_bytes_up
    assert outcome.traffic.sum_up == outlook.sum_bytes_up[primitives.KIND]
    step = outlook.parts[0].resolution
    assert step is not None
    assert 0 < outcome.error < SIZE * step


def leaf(name: str) -> Leaf:
    (found,) = (each for each in LEAVES if each.name == name)
    return found


def replayed(name: str, original: Function, *args: Any, **kwargs: Any) -> object:
    replay = leaf(name).replay(original, *args, **kwargs)
    assert replay is not None
    return replay()


def test_bare_primitives_do_the_same_work() -> None:
    secret, salt, info = bytes(range(32)), b"salt", b"info"

    assert replayed("public_key", keys.public_key, secret) == keys.public_key(secret)
    derived = keys.hkdf(secret, salt=salt, info=info)
    assert replayed("hkdf", keys.hkdf, secret, salt=salt, info=info) == derived
    assert replayed("digest", hashing.digest, "test", salt, info) == hashing.digest("test", salt, info)


def test_patches_reach_every_importer_and_are_undone() -> None:
    originals = [vars(keys)["verify"], vars(client_checks)["verify"], vars(ClientMachine)["leave"]]

    def patched(*_args: object) -> None: ...

    with Patches() as patches:
        patches.replace(keys, "verify", lambda _: patched)
        patches.replace(ClientMachine, "leave", lambda _: patched)
        within = [vars(keys)["verify"], vars(client_checks)["verify"], vars(ClientMachine)["leave"]]

    assert within == [patched] * 3
    assert [vars(keys)["verify"], vars(client_checks)["verify"], vars(ClientMachine)["leave"]] == originals


def test_recording_leaves_no_trace() -> None:
    before = [vars(each.owner)[each.name] for each in LEAVES]

    recorded(Trust.CURIOUS)

    assert [vars(each.owner)[each.name] for each in LEAVES] == before


def test_balance() -> None:
    entries = dict.fromkeys(Cost, Entry(setup=0.0, each_sum=0.0))
    entries[Cost.DH] = Entry(setup=6.0, each_sum=1.0)
    entries[Cost.CODEC] = Entry(setup=0.0, each_sum=2.0)
    entries[Cost.REST] = Entry(setup=3.0, each_sum=0.5)

    balance = Balance(Trust.CURIOUS, "client", 3, entries)

    assert (balance.setup, balance.each_sum) == (9.0, 3.5)
    assert (balance.primitives, balance.around) == (3.0, 3.5)
    assert balance.ratio == pytest.approx(3.5 / 3)
    assert not balance.holds


def test_costs_are_on_one_side_or_the_other() -> None:
    assert sorted((*PRIMITIVES, *AROUND)) == sorted(Cost)


# --- the command ---


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["primitives", *SMALL, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["clients"], found["dim"], found["sums"], found["bits"]) == (SIZE, 9, SUMS, 32)
    sides = [(each["trust"], each["role"]) for each in found["balances"]]
    assert sides == [(str(trust), role) for trust in Trust for role in ("client", "server")]
    for each in found["balances"]:
        assert set(each["cpu_ms"]) == set(Cost)
        total = sum(row["amortised"] for row in each["cpu_ms"].values())
        assert total == pytest.approx(each["primitives_ms"] + each["around_ms"])
        assert each["holds"] == (each["ratio"] <= 1)
        rows = each["cpu_ms"].values()
        assert sum(row["setup"] for row in rows) == pytest.approx(each["setup_ms"])
        assert sum(row["each_sum"] for row in rows) == pytest.approx(each["each_sum_ms"])
        assert total == pytest.approx(each["setup_ms"] / SUMS + each["each_sum_ms"])
    assert set(found["bytes_per_client"]) == set(found["largest_error"]) == set(Trust)


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["primitives", *SMALL]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("around / primitives = ") == 4
    assert out.count("hold") == 2, "the bar is the client's, under both trust levels"
    assert out.count("set-up each sum in all     set-up each sum in all") == 2
    assert out.count("largest error of a coordinate") == 2
    for word in (
        "DH: X25519",
        "HKDF",
        "Shamir",
        "AEAD",
        "sign",
        "verify",
        "masks",
        "codec",
        "Bytes per client",
    ):
        assert word in out


class FakeMeasure:
    """Remembers the setting it was asked for, and measures a small one instead."""

    def __init__(self) -> None:
        self.asked: list[Setting] = []

    def __call__(self, setting: Setting, progress: OnProgress) -> PrimitivesReport:
        self.asked.append(setting)
        return measure(Setting(SIZE, 4, 1, 32), progress)


class FakeSum:
    """The same for `python -m benchmarks sum`."""

    def __init__(self) -> None:
        self.asked: list[SumSetting] = []

    def __call__(self, setting: SumSetting, progress: Bar) -> sums.SumReport:
        self.asked.append(setting)
        return measure_sum(replace(setting, clients=SIZE, dim=4, corrupt=0), progress)


class FakePeers:
    """The same for `python -m benchmarks peers`, and nothing is measured at all."""

    def __init__(self) -> None:
        self.asked: list[PeersSetting] = []

    def __call__(self, setting: PeersSetting, _: Bar) -> PeersReport:
        self.asked.append(setting)
        return PeersReport(setting, [Row(OURS, FLOWER)])


class FakeNoise:
    """The same for `python -m benchmarks noise`."""

    def __init__(self) -> None:
        self.asked: list[NoiseSetting] = []

    def __call__(self, setting: NoiseSetting, progress: Bar) -> NoiseReport:
        self.asked.append(setting)
        return measure_noise(replace(setting, size=100), progress)


class FakeNetwork:
    """The same for `python -m benchmarks network`, and nothing is measured at all."""

    def __init__(self) -> None:
        self.asked: list[DrillConfig] = []

    def __call__(self, setting: DrillConfig, _: Bar, *, runs: int) -> NetworkReport:
        self.asked.append(setting)
        return NetworkReport(
            setting=setting,
            cores=2,
            runs=runs,
            exact=True,
            session_cpu_s=2.0,
            session_wall_s=1.0,
            setup_wall_s=0.5,
            bytes_up=1,
            bytes_down=1,
            server_peak_bytes=1,
        )


class FakeTraining:
    """The same for `python -m benchmarks training`, and nothing is trained."""

    def __init__(self) -> None:
        self.asked: list[TrainingSetting] = []

    def __call__(self, setting: TrainingSetting, _: Bar) -> TrainingReport:
        self.asked.append(setting)
        costs = TrainingCosts(
            setup="some-model",
            dim=4,
            clients=2,
            batch=1,
            steps=1,
            one_by_one_cpu_s=2.0,
            together_cpu_s=1.0,
            auto_cpu_s=1.0,
            difference=0.0,
        )
        return TrainingReport(setting, [costs])


class FakeOverhead:
    """The same for `python -m benchmarks overhead`, and nothing is measured at all."""

    def __init__(self) -> None:
        self.asked: list[OverheadSetting] = []

    def __call__(self, setting: OverheadSetting, _: Bar) -> OverheadReport:
        self.asked.append(setting)
        return overhead_reports.report()


Fakes = tuple[FakeMeasure, FakeSum, FakeNoise, FakeNetwork, FakeTraining, FakeOverhead, FakePeers]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Every benchmark, as `python -m benchmarks` finds them with Flower, and without OpenDP and Ray."""
    found = (
        FakeMeasure(), FakeSum(), FakeNoise(), FakeNetwork(), FakeTraining(), FakeOverhead(), FakePeers()
    )  # fmt: skip
    modules = (primitives, sums, noise, network, training, overhead, peers)
    for module, fake in zip(modules, found, strict=True):
        monkeypatch.setattr(module, "measure", fake)
    monkeypatch.setattr(noise, "find_spec", lambda _: None)
    monkeypatch.setattr(flower, "installed", lambda: True)
    monkeypatch.setattr(cluster, "find_spec", lambda _: None)
    return found


@pytest.mark.parametrize("options", [("--json", "primitives"), ("primitives", "--json")])
def test_one_benchmark_prints_its_report_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    fake = FakeMeasure()
    monkeypatch.setattr(primitives, "measure", fake)

    assert main([*options]) == 0

    assert fake.asked == [Setting(clients=100, dim=1000, sums=3, bits=32)]
    assert json.loads(capsys.readouterr().out)["clients"] == SIZE


def test_bench_alone_runs_all_with_their_defaults(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fake, fake_sum, fake_noise, fake_network, fake_training, fake_overhead, fake_peers = fakes

    assert main(["--json"]) == 0

    assert fake.asked == [Setting(clients=100, dim=1000, sums=3, bits=32)]
    assert (
        fake_sum.asked
        == [
            SumSetting(
                clients=50, dim=1_000_000, bits=32, corrupt=5, dropout=Fraction(1, 10), trust=Trust.CURIOUS
            )
        ]
        * 5
    )
    assert fake_noise.asked == [NoiseSetting(Fraction(2), 20_000_000)]
    (network_setting,) = fake_network.asked
    assert (network_setting.clients, network_setting.dim, network_setting.neighbours) == (50, 10**6, 24)
    assert fake_training.asked == [TrainingSetting(clients=100, batch=10, steps=5)]
    assert fake_overhead.asked == [OverheadSetting()]
    (peers_setting,) = fake_peers.asked
    assert peers_setting == PeersSetting(
        clients=50, neighbours=24, corrupt=5, dropout=Fraction(1, 10), dims=(1000, 10**4, 10**5, 10**6)
    )
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["primitives", "sum", "noise", "network", "training", "overhead", "peers"]
    assert found["sum"]["dim"] == 4
    assert found["peers"]["peer"] == "flwr 9.9"


@pytest.mark.usefixtures("fakes")
def test_bench_alone_draws_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    out = capsys.readouterr().out
    ours = (
        "around / primitives = ",
        "masks off",
        "discrete Gaussian",
        "over TLS",
        "some-model",
        "over plain",
    )
    texts = (*ours, "SecAgg+ of flwr 9.9")
    assert sorted(texts, key=out.index) == list(texts)


def test_bench_alone_leaves_out_what_is_missing(
    fakes: Fakes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(flower, "installed", lambda: False)

    assert main(["--json"]) == 0

    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["primitives", "sum", "noise", "network", "training", "overhead"]
    assert fakes[-1].asked == []
    assert err == (
        "python -m benchmarks: ray is left out: Ray is not installed: pip install 'secagg[ray]'\n"
        "python -m benchmarks: peers is left out: Flower is not installed: pip install 'secagg[peers]'\n"
    )


def test_progress_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(primitives, "measure", FakeMeasure())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    assert main(["primitives", "--json"]) == 0

    out, err = capsys.readouterr()
    assert "malicious_server: a session, timed" in err
    json.loads(out)


@pytest.mark.parametrize("module", ["matplotlib", "rich"])
def test_missing_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    assert main(["primitives", *SMALL]) == 2

    assert "pip install 'secagg[sims]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("primitives", "--bits", "3"), "part 'update' has 3 bits, but 100 clients need 8"),
        (("primitives", "--clients", "2"), "'2' is not a whole number from 3 to 1024"),
        (
            ("--sums", "5"),
            "belongs behind the name of a benchmark "
            "(try python -m benchmarks primitives --sums 5 or python -m benchmarks network --sums 5 "
            "or python -m benchmarks overhead --sums 5)",
        ),
        (
            ("--dim", "5"),
            "(try python -m benchmarks primitives --dim 5 or python -m benchmarks sum --dim 5 "
            "or python -m benchmarks network --dim 5)",
        ),
        (("no-such-benchmark",), "invalid choice: 'no-such-benchmark'"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert main([*options]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        (("--clients", "10", "--dim", "10"), 5),
        (("--clients", "201", "--dim", "10"), 1),
        (("--clients", "20", "--dim", "10000000"), 1),
        (("--clients", "10", "--dim", "10", "--runs", "2"), 2),
    ],
)
def test_short_sums_are_run_several_times(
    fakes: Fakes,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    runs: int,
) -> None:
    assert main(["sum", *options, "--json"]) == 0
    assert len(fakes[1].asked) == runs
    assert json.loads(capsys.readouterr().out)["exact"]

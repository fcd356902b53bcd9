"""Algorithms train through the adapter of NVFlare as in a simulation, whoever leaves, returns or is late.

The cells are those of one process here; test_nvflare_simulator.py and test_nvflare_poc.py have NVFlare's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from protocols.run import RoundReport
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.errors import StateError
from secagg.events import Answer, ClientStep
from secagg.local_session import Stage
from secagg.net.tunnel_letters import Letter
from sims.audit.audit_run import audit_run
from sims.engines.nvflare.site_agent import ENDED, REFUSED
from sims.records.run_file_names import SUMS
from tests.engines.engine_site import Kill
from tests.engines.nvflare_cells import JOB, NvflareSite
from tests.engines.nvflare_poc import wait_until
from tests.engines.test_training_through_engine import STAGES, check_never_rejoined
from tests.sims.test_training_catalogue import CLOSE
from tests.sims.test_training_hosts import ALGORITHMS as HOSTED
from tests.sims.test_training_hosts import MALICIOUS
from tests.sims.training_processes import SimulatedRun

NAMES = ("fedavg", "rfa", "fedgeomed+", "fedbc", "lp-proj-1", "fedalt")
ALGORITHMS = {name: HOSTED[name] for name in NAMES}
COMPARING = {"lp-proj-1"}  # a last bit may become a whole count, unless clients are simulated one by one


class OneByOne(NvflareSite):
    scenario_text = NvflareSite.scenario_text.replace("batch = 16", 'batch = 16\nway = "one-by-one"')


@pytest.fixture
def sites() -> Iterator[list[NvflareSite]]:
    """Sites that the test has made, to end them."""
    made: list[NvflareSite] = []
    yield made
    for each in made:
        each.end()


@pytest.fixture
def connected(caplog: pytest.LogCaptureFixture) -> Callable[[int, int], None]:
    """Waits until a site has connected to the server for the `times`-th time."""
    caplog.set_level("INFO", "secagg.net")

    def wait(member: int, times: int) -> None:
        words = f"connected member={member}"
        wait_until(lambda: [each.getMessage() for each in caplog.records].count(words) >= times, words, 60.0)

    return wait


def site_with(sites: list[NvflareSite], directory: Path, **settings: Any) -> NvflareSite:
    kind = OneByOne if settings.pop("one_by_one", False) else NvflareSite
    sites.append(kind(directory, **settings))
    return sites[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_the_same_result_as_in_a_simulation(
    tmp_path: Path, sites: list[NvflareSite], name: str
) -> None:
    site = site_with(sites, tmp_path, algorithm=ALGORITHMS[name], rounds=2, one_by_one=name in COMPARING)
    assert site.run()
    assert [report.clients for report in site.reports] == [4, 4]
    simulated = SimulatedRun(tmp_path / "train.toml")
    assert site.model().any()  # the first model is 0
    assert np.abs(site.model() - simulated.model).max() < CLOSE
    for member, own in simulated.personal.items():
        outcome = site.outcome(member)
        assert outcome is not None
        assert outcome.state == ENDED
        assert np.abs(site.model(f"personal-{member}.npz") - own).max() < CLOSE


@pytest.mark.slow
def test_a_private_algorithm_trains_and_all_sites_pay(tmp_path: Path, sites: list[NvflareSite]) -> None:
    privacy = "\n[privacy]\nepsilon = 45.0\ndelta = 1e-5\ndropouts = 1\n"
    lines = 'name = "simplicial"\nclip = 1.0\ntheta = 0.5\nloss_bound = 5.0' + privacy
    site = site_with(sites, tmp_path, algorithm=lines, rounds=2, unnoised=0)
    site.join_text = site.join_text.replace("unnoised_sums = {unnoised}", "unnoised_sums = 0\nmax_rho = 1e6")
    site.write_all(0)
    assert site.run()
    assert [report.completed for report in site.reports] == [True, True]
    for member in site.clients:
        assert np.array_equal(site.model(f"final-{member}.npz"), site.model())
    spend = json.loads((tmp_path / "run" / "spend.json").read_text())
    assert spend["server"]["rho"] > 0
    assert spend["server"]["unnoised"] == 0


@pytest.mark.slow
def test_a_killed_site_takes_part_again_after_a_restart(
    tmp_path: Path, sites: list[NvflareSite], connected: Callable[[int, int], None]
) -> None:
    site = site_with(sites, tmp_path, algorithm='name = "rfa"', rounds=6, trust="malicious_server")
    site.change("train.toml", "min_cohort = 4", "min_cohort = 3\npatience = { grace = 5.0 }")

    def on_round(report: RoundReport) -> None:
        if report.number == 0:
            for member in site.clients:
                connected(member, 1)
        if report.number == 1:
            site.kill(2)
        if report.number == 2:
            site.start(2)
            connected(2, 2)

    site.on_round = on_round
    assert site.run()
    clients = [report.clients for report in site.reports]
    assert clients[1:3] == [4, 3]
    assert clients[4:] == [4, 4]  # with the keys of a new session
    assert np.array_equal(site.model("final-2.npz"), site.model())


# By stage: the message with which a site's end begins to lose them, and its number among those of its kind.
LOST: dict[str, tuple[type[m.Message], int]] = {
    "advertise": (m.Advertisement, 1),
    "share": (m.Shares, 1),
    "mask": (m.MaskedInput, 2),
    "confirm": (m.Confirmation, 2),
    "reveal": (m.Reveal, 2),
}
KILLS = [
    (stage, trust)
    for stage in dict.fromkeys([*LOST, *STAGES])
    for trust in ("curious_server", MALICIOUS)
    if (stage, trust) != ("confirm", "curious_server")  # which has no such stage
]


def lose(
    site: NvflareSite, member: int, lost: type[m.Message], times: int, patch: pytest.MonkeyPatch
) -> Event:
    """Remove the cell of a site as soon as its client has made its `times`-th message `lost`: nothing of it
    arrives. Return an event that is set then."""
    left, done = [times], Event()

    def note(machine: ClientMachine, frames: Iterable[bytes]) -> None:
        if machine.member == member and lost in {m.message_type(each, sender=member) for each in frames}:
            left[0] -= 1
            if left[0] == 0:
                site.cells.remove(f"site-{member}")
                done.set()

    def receive(machine: ClientMachine, frame: bytes, **more: Any) -> ClientStep:
        step = received(machine, frame, **more)
        note(machine, step.frames)
        return step

    def answer(machine: ClientMachine, sum_index: int, values: Any) -> Answer:
        made = answered(machine, sum_index, values)
        note(machine, [made.frame])
        return made

    received, answered = ClientMachine.receive, ClientMachine.answer
    patch.setattr(ClientMachine, "receive", receive)
    patch.setattr(ClientMachine, "answer", answer)
    return done


def wait_for_event(site: NvflareSite, kill: Kill) -> None:
    """Wait until a site's own log has an event for the `times`-th time."""
    log, words = site / "site.log", f'"event": "{kill.event}"'
    wait_until(lambda: log.exists() and log.read_text().count(words) >= kill.times, words, 60.0, pause=0.002)


def shortfalls(site: NvflareSite) -> list[str]:
    """Return the stages in which the server had one message less than in the stage before it, or than clients
    were invited."""
    found, count = [], 0
    for entry in map(json.loads, (site / "run" / SUMS).read_text().splitlines()):
        count = entry["members"] if entry["entry"] == "session" else count
        for stage in (each.value for each in Stage if each.value in entry["frames_up"]):
            found += [stage] * (entry["frames_up"][stage] == count - 1)
            count = entry["frames_up"][stage]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "trust"), KILLS)
def test_a_site_that_is_killed_at_a_stage_drops_out_and_comes_back(
    tmp_path: Path,
    sites: list[NvflareSite],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    trust: str,
) -> None:
    caplog.set_level("INFO", "secagg.net")
    kill, killed = STAGES.get(stage, Kill(1, "", 0)), Event()
    site = site_with(sites, tmp_path, clients=5, rounds=6, trust=trust)
    site.change("train.toml", "min_cohort = 5", "min_cohort = 4\npatience = { grace = 2.0 }")
    site.change(f"join-{kill.member}.toml", "[client]", '[client]\nlog = "site.log"')
    lost = lose(site, kill.member, *LOST[stage], monkeypatch) if stage in LOST else None

    def kill_site() -> None:
        if lost is None:
            wait_for_event(site, kill)
        else:
            assert lost.wait(60.0)
        site.kill(kill.member)
        killed.set()

    def times(words: str) -> int:
        return sum(each.getMessage().startswith(words) for each in caplog.records)

    def on_round(report: RoundReport) -> None:
        if report.number == 2:
            assert killed.wait(60.0)
            before = times(f"connected member={kill.member}")
            site.start(kill.member)
            wait_until(lambda: times(f"connected member={kill.member}") > before, "the site is back", 60.0)

    site.on_round = on_round
    killer = Thread(target=kill_site)
    killer.start()
    assert site.run()
    killer.join()
    assert [report.completed for report in site.reports] == [True] * 6
    clients = [report.clients for report in site.reports]
    assert clients[2] == 4
    assert clients[-1] == 5  # with the keys of a new session
    assert times(f"left member={kill.member} ") >= 1
    if stage in LOST:
        assert shortfalls(site) == [stage]
    check_never_rejoined(
        site / f"client-{kill.member}.ledger", least=1 if stage in ("advertise", "share") else 2
    )
    assert np.array_equal(site.model(f"final-{kill.member}.npz"), site.model())
    assert audit_run(site / "run").integrity.problems == ()


@pytest.mark.slow
def test_a_late_site_joins_a_running_job(
    tmp_path: Path, sites: list[NvflareSite], connected: Callable[[int, int], None]
) -> None:
    site = site_with(sites, tmp_path, rounds=6)
    site.change("train.toml", "min_cohort = 4", "min_cohort = 3")

    def on_round(report: RoundReport) -> None:
        if report.number == 0:
            site.start(3)
            connected(3, 1)

    site.on_round = on_round
    for member in (0, 1, 2):
        site.start(member)
    assert site.serve()
    clients = [report.clients for report in site.reports]
    assert clients[0] == 3
    assert clients[2:] == [4, 4, 4, 4]
    assert np.array_equal(site.model("final-3.npz"), site.model())


@pytest.mark.slow
def test_other_terms_are_refused_in_words_on_both_sides(
    tmp_path: Path, sites: list[NvflareSite], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "secagg.net")
    site = site_with(sites, tmp_path, rounds=2)
    other = (tmp_path / "train.toml").read_text().replace("clip = 5.0", "clip = 50.0")
    site.write("other.toml", other)
    site.scenarios = {1: "other.toml"}
    site.write_all(0)
    site.change("train.toml", "min_cohort = 4", "min_cohort = 3")
    assert site.run()
    outcome = site.outcome(1)
    assert outcome is not None
    assert (outcome.state, outcome.error) == (REFUSED, "ConfigError")
    assert "the terms differ: algorithm" in outcome.reason
    assert not (tmp_path / "final-1.npz").exists()
    told = [each.getMessage() for each in caplog.records if "member=1" in each.getMessage()]
    assert any("the terms differ: algorithm" in each for each in told)
    assert [report.clients for report in site.reports] == [3, 3]


@pytest.mark.slow
def test_an_aborted_job_goes_on_in_the_next_one(tmp_path: Path, sites: list[NvflareSite]) -> None:
    site = site_with(sites, tmp_path, rounds=3)
    site.on_round = lambda _report: site.aborted.set()
    assert not site.run()
    done = len(site.reports)
    assert done < 3
    assert not site.results.exists()
    for member in site.clients:
        if member % 2:
            site.kill(member)
            site.start(member)
        else:  # as soon as NVFlare has ended the process of the job
            site.agents[member].end_job(JOB)
            letters = [content for target, content in site.cells.requests if target == f"site-{member}"]
            site.agents[member].answer(JOB, letters[-1])  # one that was on its way
    site.aborted.clear()
    site.on_round = lambda _report: None
    assert site.serve("job-2")
    assert len(site.reports) == 3
    assert {each.name for each in site.results.iterdir()} >= {"model.npz", "model.safetensors"}


@pytest.mark.slow
def test_letters_show_no_model_and_no_values(tmp_path: Path, sites: list[NvflareSite]) -> None:
    site = site_with(sites, tmp_path, rounds=2)
    assert site.run()
    carried = b"".join(content for _, content in site.cells.requests) + b"".join(site.cells.replies)
    model = site.model().astype("<f8")
    assert len(carried) > model.nbytes
    for width in ("<f8", "<f4"):
        assert model.astype(width)[:4].tobytes() not in carried
    assert b"residuals" not in carried
    assert b"algorithm" not in carried  # a word of the terms, which the server has sent to all


@pytest.mark.slow
def test_a_site_takes_part_in_one_job_at_a_time(tmp_path: Path, sites: list[NvflareSite]) -> None:
    site = site_with(sites, tmp_path, rounds=2)
    seen: list[str] = []

    def on_round(_report: RoundReport) -> None:
        with pytest.raises(StateError) as refused:
            site.agents[0].answer("job-2", Letter(b"another.", 1).encode())
        seen.append(str(refused.value))

    site.on_round = on_round
    assert site.run()
    assert seen == [f"job job-2 has to wait: this site still takes part in job {JOB}"] * 2

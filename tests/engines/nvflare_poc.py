"""A provisioned federation of NVFlare on loopback, for tests: its server and its sites are processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sims.engines.nvflare.startup_kit import install_on_server, install_on_site
from tests.sims.deploy_site import ROOT

SERVER = "server"
ADMIN = "admin@nvidia.com"
LONGEST = 300.0  # seconds after which a test has hung
_ADMIN_PROGRAM = """
import sys, time
from nvflare.fuel.flare_api.flare_api import new_secure_session

name, kit, command, argument = sys.argv[1:]
session = new_secure_session(name, kit)
if command == "submit":
    print(session.submit_job(argument))
elif command == "download":
    print(session.download_job_result(argument))
elif command == "cat":
    print(session.cat_target(argument, file="startup/fed_client.json"))
elif command == "detail":
    print(session.get_job_meta(argument).get("job_deploy_detail"))
else:
    status = ""
    while not status.startswith(("FINISHED", "FAILED", "ABANDONED")):
        time.sleep(1)
        status = session.get_job_meta(argument)["status"]
    print(status)
session.close()
"""
_PROGRAMS = "nvflare.private.fed.app"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until(
    condition: Callable[[], Any], what: str, seconds: float = LONGEST, *, pause: float = 0.2
) -> Any:
    """Return what `condition` returns, as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause)
    return found


class Poc:
    """Startup kits of a server and of `sites`, and the processes that were started with them."""

    def __init__(self, directory: Path, sites: Sequence[str]) -> None:
        self.directory, self.sites = directory, sites
        self.environment = {
            **os.environ,
            "HOME": str(directory),
            "NVFLARE_POC_WORKSPACE": str(directory / "poc"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._prepare()

    def _prepare(self) -> None:
        command = [sys.executable, "-m", "nvflare.cli", "poc", "prepare", "-c", *self.sites]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)
        port = free_port()
        for path in self.kit("").glob("*/startup/fed_*.json"):
            text = path.read_text().replace('"server:8002"', '"localhost:8002"')
            path.write_text(re.sub(r"\b8002\b", str(port), text))
        install_on_server(self.kit(SERVER))
        for site in self.sites:
            install_on_site(self.kit(site))

    def kit(self, name: str) -> Path:
        return self.directory / "poc" / "example_project" / "prod_00" / name

    def local(self, name: str) -> Path:
        return self.kit(name) / "local"

    # --- processes ---

    def start(self, *names: str) -> None:
        for name in names:
            options = ["org=nvidia", "config_folder=config", "secure_train=true"]
            options += [] if name == SERVER else [f"uid={name}"]
            role = "server" if name == SERVER else "client"
            module, kit = f"{_PROGRAMS}.{role}.{role}_train", str(self.kit(name))
            with (self.directory / f"{name}.out").open("ab") as out:
                self._processes[name] = subprocess.Popen(
                    [
                        sys.executable,
                        "-u",
                        "-m",
                        module,
                        "-m",
                        kit,
                        "-s",
                        f"fed_{role}.json",
                        "--set",
                        *options,
                    ],
                    env=self.environment,
                    cwd=self.directory,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def start_all(self, *, late: Collection[str] = ()) -> None:
        """Start the server, and all sites that are not `late`."""
        self.start(SERVER)
        wait_until(self._listens, "the server listens")
        first = [site for site in self.sites if site not in late]
        self.start(*first)
        for site in first:
            wait_until(partial(self.says, SERVER, f"client {site} registered"), f"{site} is registered")

    def says(self, name: str, words: str) -> bool:
        """Return whether the output of a site or the server contains `words`."""
        return words in self.output(name)

    def _listens(self) -> bool:
        found = json.loads((self.kit(SERVER) / "startup" / "fed_server.json").read_text())
        host, port = found["servers"][0]["service"]["target"].split(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            return False
        return True

    def output(self, name: str) -> str:
        path = self.directory / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill all processes of a site or the server at once."""
        import psutil

        process = self._processes.pop(name)
        try:
            family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        except psutil.NoSuchProcess:
            family = []
        for each in family:
            each.send_signal(signal.SIGKILL)
        process.wait()

    def job_process(self, site: str) -> int | None:
        """Return the process of a job at a site, if there is one."""
        import psutil

        for each in psutil.Process(self._processes[site].pid).children():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if "worker_process" in " ".join(each.cmdline()):
                    return int(each.pid)
        return None

    def kill_job_process(self, site: str) -> None:
        """Kill the process of a job at a site, and nothing else of the site."""
        process = wait_until(lambda: self.job_process(site), f"{site} has a process of the job")
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: self.job_process(site) is None, f"the process of the job at {site} has ended")

    def end(self) -> None:
        """Whatever became of the test, no process outlives it."""
        for name in list(self._processes):
            self.kill(name)

    # --- jobs ---

    def submit(self, job: Path) -> str:
        """Submit the folder of a job as an administrator does. Return its id."""
        return self._as_admin("submit", str(job))

    def wait_for_end(self, job: str) -> str:
        """Return the final status of a job."""
        return self._as_admin("wait", job)

    def download(self, job: str) -> Path:
        """Download the results of a job, as the one does who has submitted it."""
        return Path(self._as_admin("download", job))

    def deployment(self, job: str) -> str:
        """Return what the parties have said when a job was deployed to them."""
        return self._as_admin("detail", job)

    def file_of(self, site: str) -> str:
        """Return the answer to an administrator who asks for a file of a site."""
        return self._as_admin("cat", site)

    def _as_admin(self, command: str, argument: str) -> str:
        """Run a command in a process of its own: warnings in NVFlare are no errors there."""
        words = [sys.executable, "-c", _ADMIN_PROGRAM, ADMIN, str(self.kit(ADMIN)), command, argument]
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

"""A SuperLink with TLS and node authentication on loopback, for tests, and processes that belong to it."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sims.records.run_file_names import RUN
from tests.sims.deploy_site import ROOT

BIN: Final = Path(sys.executable).parent
APP: Final = ROOT / "examples" / "flower" / "app"
PATIENCE: Final = 120.0  # seconds for a process of Flower to do something
LINK: Final = "here"  # the name of the SuperLink in Flower's configuration


class SuperLink:
    """A SuperLink in `directory`, with its certificates, the keys of its nodes, and its processes. Without
    TLS and node authentication if `insecure`. Its processes use the package of this repository, or only the
    `installed` one."""

    def __init__(self, directory: Path, *, insecure: bool = False, installed: bool = False) -> None:
        self.directory = directory
        self.insecure = insecure
        self.installed = installed
        self.port = free_port()
        self.home = directory / "flower-home"
        self.home.mkdir()
        self.started: list[subprocess.Popen[bytes]] = []
        self._make_certificates()
        roots = f'root-certificates = "{self.directory / "flower-ca.pem"}"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{self.address}"\n'
            f"{'insecure = true' if insecure else roots}\n"
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {
            **inherited,
            **({} if self.installed else {"PYTHONPATH": str(ROOT)}),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def _make_certificates(self) -> None:
        authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = _certificate("ca", authority, "ca", authority, is_ca=True)
        server = _certificate("127.0.0.1", own, "ca", authority, is_ca=False)
        self._write("flower-ca.pem", root.public_bytes(s.Encoding.PEM))
        self._write("flower.pem", server.public_bytes(s.Encoding.PEM))
        self._write("flower.key", _pem(own))

    def _write(self, name: str, content: bytes) -> None:
        (self.directory / name).write_bytes(content)

    # --- processes ---

    def start(self, name: str, *arguments: str, **changes: str) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to `name`.log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                arguments,
                cwd=self.directory,
                env={**self.environment, **changes},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def open(self) -> None:
        ours = self.directory
        self.start(
            "superlink",
            str(BIN / "flower-superlink"),
            *self._security,
            *("--host", "127.0.0.1", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        )
        context = None if self.insecure else ssl.create_default_context(cafile=str(ours / "flower-ca.pem"))
        scheme = "http" if self.insecure else "https"
        end = time.monotonic() + PATIENCE
        while True:
            try:
                # An address of this machine, whatever the scheme.
                urllib.request.urlopen(f"{scheme}://{self.address}/health", timeout=2, context=context)  # noqa: S310
            except OSError:
                assert time.monotonic() < end, (ours / "superlink.log").read_text()
                time.sleep(0.2)
            else:
                return

    @property
    def _security(self) -> list[str]:
        if self.insecure:
            return ["--insecure"]
        files = {"ca-certfile": "flower-ca.pem", "certfile": "flower.pem", "keyfile": "flower.key"}
        given = [
            word for name, file in files.items() for word in (f"--ssl-{name}", str(self.directory / file))
        ]
        return [*given, "--enable-supernode-auth"]

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower to its end, and return what it prints."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def new_key(self, name: str) -> Path:
        """Make a key for a node, which is not registered yet."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
        self._write(f"{name}.node.key", private)
        public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
        self._write(f"{name}.node.pub", public)
        return self.directory / f"{name}.node.key"

    def register(self, name: str, as_name: str | None = None) -> None:
        public = self.directory / f"{name}.node.pub"
        self.flwr("supernode", "register", str(public), LINK, "--name", as_name or name)

    def run_app(self, config: Mapping[str, str]) -> None:
        """Submit the example's app with this configuration."""
        app = self.directory / "app"
        if not app.exists():
            shutil.copytree(APP, app)
        given = " ".join(f'{key}="{value}"' for key, value in config.items())
        self.flwr("run", str(app), LINK, "--run-config", given)

    def wait_for_status(self, run: Path, status: str) -> None:
        """Wait until a run directory says that its run has this status."""
        end = time.monotonic() + PATIENCE
        while json.loads((run / RUN).read_text())["status"] != status:
            assert time.monotonic() < end, (self.directory / "superlink.log").read_text()[-3000:]
            time.sleep(0.2)

    @property
    def server_apps(self) -> list[int]:
        """The ids of the processes of ServerApps that this SuperLink has started. They outlive it."""
        ours = {b"flwr-serverapp", self.address.encode()}
        found = []
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has just ended
                words = each.read_bytes().split(b"\0")
                if ours <= {word.rpartition(b"/")[2] for word in words}:
                    found.append(int(each.parent.name))
        return found

    def close(self) -> None:
        for process in reversed(self.started):
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    process.wait(3)
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue
            process.wait()
        for server_app in self.server_apps:
            with suppress(ProcessLookupError):
                os.kill(server_app, signal.SIGKILL)


@contextmanager
def superlink(directory: Path, *, insecure: bool = False, installed: bool = False) -> Iterator[SuperLink]:
    """Run a SuperLink, and end it with all that it and the test have started."""
    link = SuperLink(directory, insecure=insecure, installed=installed)
    try:
        link.open()
        yield link
    finally:
        link.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())

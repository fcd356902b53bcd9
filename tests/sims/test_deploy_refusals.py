"""What ``secagg serve`` and ``secagg join`` refuse to start with: one sentence, and exit status 2."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secagg.ledger import ClientLedger
from sims.cli import main
from sims.deploy.totals_directory import TotalsDirectory
from tests.sims.deploy_site import CLIENTS, Site

Break = Callable[[Site], object]
BOTH = ("serve", "join")
CONFIG = {"serve": "serve.toml", "join": "join-1.toml"}
OWN = {"serve": "server", "join": "client-1"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def refused(site: Site, command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence."""
    assert main([command, str(site / CONFIG[command])]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"secagg {command}: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err.replace(f"{site.directory}/", "").strip()


@pytest.mark.parametrize("command", BOTH)
def test_everything_is_in_order(site: Site, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Or none of the refusals below would show anything."""
    before = {path: path.read_bytes() for path in site.directory.iterdir() if path.is_file()}

    assert main([command, "--check", str(site / CONFIG[command])]) == 0

    first, *cautions = capsys.readouterr().out.splitlines()
    assert first.endswith("everything is in order")
    assert all(line.startswith("caution: ") for line in cautions)
    assert {path: path.read_bytes() for path in site.directory.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("command", BOTH)
def test_a_system_without_file_locks(
    site: Site, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # an import of it fails
    assert "need file locks, which this operating system does not have" in refused(site, command, capsys)


# --- the configuration itself ---


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (None, "does not exist; write one, or correct the path"),
        (b"[server", "is not TOML: Expected ']'"),
        (b"\xff\xfe", "is not TOML: it is not even UTF-8"),
        (b"\xef\xbb\xbf[server", "is not TOML: Expected ']'"),  # an editor's mark is no mistake
        (b"[server]\nlisten = " + b"7" * 5000, "has a number of too many digits; write a shorter one"),
        (b"[server]\nlisten = " + b"[" * 3000 + b"]" * 3000, "has too many brackets within brackets"),
    ],
)
def test_configuration_that_cannot_be_read(
    site: Site, command: str, contents: bytes | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / CONFIG[command]).unlink()
    if contents is not None:
        site.write(CONFIG[command], contents)

    assert sentence in refused(site, command, capsys)


# --- what both have: key, certificate, authority, registry, table, ledger, log ---


def lose(name: str) -> Break:
    return lambda site: (site / name).unlink()


def fill(name: str, contents: bytes = b"nonsense") -> Break:
    return lambda site: site.write(name, contents)


def copy(source: str, target: str) -> Break:
    return lambda site: site.write(target, (site / source).read_bytes())


def make_directory(name: str) -> Break:
    def act(site: Site) -> None:
        (site / name).unlink(missing_ok=True)
        (site / name).mkdir()

    return act


def own(act: Callable[[str], Break]) -> dict[str, Break]:
    """The same for both commands, with the name of their own files."""
    return {command: act(name) for command, name in OWN.items()}


def foreign(site: Site) -> None:
    """A registry that somebody else signed."""
    site.enrol(authority="client-3")


def expired(site: Site) -> None:
    site.enrol(expires=int(time.time()) - 1)


def stale_certificate(name: str) -> Break:
    def act(site: Site) -> None:
        site.write(f"{name}.pem", site.certificate(name, now=int(time.time()) - 100 * 86400))

    return act


def copied_ledger(name: str) -> Break:
    def act(site: Site) -> None:
        for ending in ("ledger", "ledger-seal"):
            site.write(f"{name}.{ending}", (site / f"client-2.{ending}").read_bytes())

    return act


REFUSALS: dict[str, tuple[Break | dict[str, Break], str]] = {
    "no key": (
        own(lambda name: lose(f"{name}.key")),
        "{own}.key does not exist; make one with secagg keygen",
    ),
    "a certificate as key": (
        own(lambda name: copy(f"{name}.pem", f"{name}.key")),
        "{own}.key is a certificate, not the private key that belongs to it",
    ),
    "a certificate named as key": (
        {
            "serve": lambda site: site.change("serve.toml", "server.key", "client-3.pem"),
            "join": lambda site: site.change("join-1.toml", "client-1.key", "client-3.pem"),
        },
        "client-3.pem is a certificate, not the private key that belongs to it",
    ),
    "no PEM as key": (own(lambda name: fill(f"{name}.key")), "{own}.key is not a private key"),
    "an open key": (
        own(lambda name: lambda site: (site / f"{name}.key").chmod(0o644)),
        "{own}.key is open to other users (mode 0644); run chmod 600",
    ),
    "another's key": (
        own(lambda name: copy("client-3.key", f"{name}.key")),
        "{own}.pem belongs to another key than the private key in {own}.key",
    ),
    "no certificate": (own(lambda name: lose(f"{name}.pem")), "{own}.pem does not exist"),
    "a key as certificate": (
        own(lambda name: copy(f"{name}.key", f"{name}.pem")),
        "{own}.pem is a private key, which must stay secret",
    ),
    "an expired certificate": (own(stale_certificate), "{own}.pem is a certificate that expired at"),
    "no authority": (lose("authority.pem"), "authority.pem does not exist"),
    "another authority": (
        copy("client-3.pem", "authority.pem"),
        "registry.secagg is foreign: this authority",
    ),
    "no registry": (lose("registry.secagg"), "registry.secagg does not exist; get it from the authority"),
    "no registry at all": (fill("registry.secagg"), "registry.secagg is not a registry, or is damaged"),
    "a foreign registry": (foreign, "registry.secagg is foreign: this authority"),
    "an expired registry": (expired, "registry.secagg: registry 1 expired at"),
    "no table": (lose("sums.toml"), "sums.toml does not exist"),
    "an empty table": (fill("sums.toml", b""), "sums.toml: sum: is missing"),
    "no ledger": (
        own(lambda name: lambda site: site.lose(f"{name}.ledger")),
        "{own}.ledger does not exist; restore it, or create it for a new identity with secagg {command} "
        "--new-ledger",
    ),
    "a damaged ledger": (own(lambda name: fill(f"{name}.ledger")), "{own}.ledger"),
    "a directory as ledger": (
        own(lambda name: make_directory(f"{name}.ledger")),
        "is a directory, not a ledger",
    ),
    "another's ledger": (
        own(copied_ledger),
        "{own}.ledger belongs to client 2",
    ),
}


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("case", REFUSALS)
def test_a_file_that_cannot_be_used(
    site: Site, command: str, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    act, sentence = REFUSALS[case]
    (act[command] if isinstance(act, dict) else act)(site)

    assert sentence.format(own=OWN[command], command=command) in refused(site, command, capsys)


@pytest.mark.parametrize("command", BOTH)
def test_a_log_that_cannot_be_written(site: Site, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    site.change(CONFIG[command], 'table = "sums.toml"', 'table = "sums.toml"\nlog = "no/such.log"')

    assert "log: no/such.log cannot be written: No such file or directory" in refused(site, command, capsys)


@pytest.mark.parametrize("command", BOTH)
def test_a_pipe_as_log(site: Site, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(site / "pipe")
    site.change(CONFIG[command], 'table = "sums.toml"', 'table = "sums.toml"\nlog = "pipe"')

    assert "log: pipe cannot be written: it is a special file" in refused(site, command, capsys)


@pytest.mark.parametrize("command", BOTH)
def test_a_certificate_that_is_not_valid_yet(
    site: Site, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{OWN[command]}.pem"
    site.write(name, site.certificate(OWN[command], now=int(time.time()) + 100 * 86400))

    found = refused(site, command, capsys)

    assert f"{name} is a certificate that is not valid before" in found
    assert found.endswith("UTC; is the clock right?")


# --- files that are named twice ---


@pytest.mark.parametrize(
    ("command", "old", "new", "sentence"),
    [
        ("serve", "log", "sums.toml", "server.log: sums.toml is the same file as server.table"),
        ("serve", "log", "serve.toml", "server.log: serve.toml is the same file as the configuration"),
        ("serve", "log", "server.ledger-seal", "is the same file as the seal of server.ledger"),
        ("serve", "log", "registry.pem", "is the same file as the file of certificates of server.registry"),
        ("serve", "log", "./totals/../server.key", "is the same file as server.key"),
        ("serve", "log", "link", "server.log: link is the same file as server.key"),
        ("serve", "payload", "server.key", "ask#1.payload: server.key is the same file as server.key"),
        ("join", "log", "sums.toml", "client.log: sums.toml is the same file as client.table"),
        ("join", "log", "join-1.toml", "client.log: join-1.toml is the same file as the configuration"),
        ("join", "log", "values-1.npz", "input.values: values-1.npz is the same file as client.log"),
        ("join", "log", "client-1.ledger", "client.log: client-1.ledger is the same file as client.ledger"),
    ],
)
def test_one_file_for_two_purposes(
    site: Site, command: str, old: str, new: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "totals").mkdir()
    (site / "link").symlink_to("server.key")
    before = 'kind = "mean"' if old == "payload" else 'table = "sums.toml"'
    site.change(CONFIG[command], before, f'{before}\n{old} = "{new}"')

    found = refused(site, command, capsys)

    assert sentence in found
    assert found.endswith("each needs one of its own")


def test_a_log_never_becomes_the_file_of_something_else(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even of something that is not there yet."""
    (site / "server.key").unlink()
    site.change("serve.toml", 'table = "sums.toml"', 'table = "sums.toml"\nlog = "server.key"')

    assert main(["serve", "--check", str(site / "serve.toml")]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert "server.log:" in first
    assert "is the same file as server.key" in first
    assert "does not exist" in second
    assert not (site / "server.key").exists()


def test_questions_may_share_a_payload(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write("model", b"1")
    ask = '[[ask]]\nkind = "mean"\npayload = "model"\n'
    site.change("serve.toml", '[[ask]]\nkind = "mean"\n', ask + ask)
    site.change("sums.toml", 'kind = "mean"', 'kind = "mean"\ntimes = 2')

    assert main(["serve", "--check", str(site / "serve.toml")]) == 0
    assert "in order" in capsys.readouterr().out


def test_a_registry_that_ends_in_pem(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write("members.pem", (site / "registry.secagg").read_bytes())
    site.change("serve.toml", "registry.secagg", "members.pem")

    assert "members.pem cannot be a registry: .pem is for" in refused(site, "serve", capsys)


@pytest.mark.parametrize("command", BOTH)
def test_the_authority_must_not_be_the_server(
    site: Site, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.enrol(authority="server")
    site.write("authority.pem", (site / "server.pem").read_bytes())

    found = refused(site, command, capsys)

    assert "is the authority's own: the registry must be signed by a party other than the server" in found


@pytest.mark.parametrize("command", BOTH)
def test_the_server_must_not_be_a_client(
    site: Site, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.enrol({1: "client-1", 2: "client-2", 3: "server"})

    assert "is that of a client: the server needs an identity of its own" in refused(site, command, capsys)


@pytest.mark.parametrize("command", BOTH)
def test_a_new_ledger_never_replaces_one(
    site: Site, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, config = f"{OWN[command]}.ledger", str(site / CONFIG[command])
    assert main([command, "--new-ledger", config]) == 2
    assert f"{ledger} exists already" in capsys.readouterr().err

    site.lose(ledger)
    assert main([command, "--new-ledger", config]) == 0
    assert main([command, "--check", config]) == 0


@pytest.mark.parametrize("command", BOTH)
def test_a_new_ledger_where_none_can_be(site: Site, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = f"{OWN[command]}.ledger"
    site.lose(ledger)
    site.change(CONFIG[command], f'ledger = "{ledger}"', 'ledger = "no/such/ledger"')

    assert main([command, "--new-ledger", str(site / CONFIG[command])]) == 2
    assert "no/such/ledger cannot be created: No such file or directory" in capsys.readouterr().err


def test_all_problems_at_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "server.key").unlink()
    site.change("serve.toml", 'kind = "mean"', 'kind = "maen"')
    site.change("serve.toml", "pause = 0", "pause = -1")
    site.write("totals", "")

    assert main(["serve", str(site / "serve.toml")]) == 2

    lines = capsys.readouterr().err.replace(f"{site.directory}/", "").splitlines()
    assert [line.removeprefix("secagg serve: serve.toml: ") for line in lines] == [
        "server.key: server.key does not exist; make one with secagg keygen, or correct the path",
        "session.pause: must be a number of seconds from 0 to 86400",
        "server.totals: totals is not a directory; name one, or a new one",
        "ask#1.kind: the table has no kind 'maen'; did you mean mean?",
    ]


# --- a server's own ---


def test_certificates_that_are_missing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "registry.pem").unlink()

    assert "registry.pem does not exist; get it from the authority" in refused(site, "serve", capsys)


def test_certificates_of_another_registry(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write("registry.pem", site.certificate("client-1"))

    found = refused(site, "serve", capsys)

    assert "registry.pem does not fit registry 1: it lacks certificates of 2 members (2, 3)" in found


def test_a_port_in_use(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site.change("serve.toml", "127.0.0.1:0", f"127.0.0.1:{port}")
        assert main(["serve", str(site / "serve.toml")]) == 2

    out, err = capsys.readouterr()
    assert err == (
        f"secagg serve: {site / 'serve.toml'}: server.listen: cannot listen on 127.0.0.1:{port}: "
        "Address already in use; stop the program that listens there, or choose another port\n"
    )
    assert '"gave up"' in out


def test_a_port_that_needs_a_privilege(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trio.open_tcp_listeners", denied)
    site.change("serve.toml", "127.0.0.1:0", "127.0.0.1:443")

    assert main(["serve", str(site / "serve.toml")]) == 2
    assert capsys.readouterr().err.endswith(
        "Permission denied; ports below 1024 need a privilege: choose a higher one\n"
    )


def test_totals_of_another_server(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "totals").mkdir()

    with TotalsDirectory(site / "totals").held():
        assert "server.totals: totals is in use by another server; name another" in refused(
            site, "serve", capsys
        )


def test_totals_where_nothing_can_be_made(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To check does not make the directory, but tells whether it could be made."""
    (site / "sealed").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != site / "sealed" and access(path, mode))
    site.change("serve.toml", '"totals"', '"sealed/totals"')

    assert "server.totals: sealed/totals cannot be a directory: nothing can be made in sealed" in refused(
        site, "serve", capsys
    )
    assert not (site / "sealed" / "totals").exists()


def test_an_address_of_another_machine(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.change("serve.toml", "127.0.0.1:0", "192.0.2.1:7443")  # reserved for documentation

    assert main(["serve", str(site / "serve.toml")]) == 2
    assert "cannot listen on 192.0.2.1:7443: Cannot assign requested address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("totals", "sentence"),
    [
        ("values-1.npz", "values-1.npz is not a directory; name one, or a new one"),
        ("no/such/totals", "the directory no/such does not exist; create it, or name another"),
        ("sums.toml/totals", "the directory sums.toml does not exist"),
        ("/proc/totals", "/proc/totals cannot be a directory: "),
        ("/proc/self", "/proc/self/.probe-"),
    ],
)
def test_totals_that_cannot_be_stored(
    site: Site, totals: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if totals.startswith("/proc") and not os.path.isdir("/proc/self"):
        pytest.skip("this system has no directory that nobody can write to")
    site.change("serve.toml", 'totals = "totals"', f'totals = "{totals}"')

    assert sentence in refused(site, "serve", capsys)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("corrupt = 1", "corrupt = 2", "session: corrupt + 2 <= min_contributors"),
        ("min_cohort = 3\nmax_cohort = 3", "min_cohort = 4\nmax_cohort = 4", "but the registry has 3"),
        ("dropout = 0", "dropout = 0.5", "session: with 3 clients: 3 clients with 1 colluders under"),
        ("dropout = 0", "dropout = 1.5", "session: the drop-out fraction must be at least 0 and below 1"),
        ("sessions = 1", "sessions = -1", "session.sessions: must be at least 0"),
        ("sessions = 1", "first_round = -1", "session.first_round: must be from 0"),
        ("sessions = 1", "sums = 65", "session: sums must be from 1 to 64"),
        ("sessions = 1", 'graph = "ring"', "a ring needs a curious_server"),
        ('kind = "mean"\n', 'kind = "mean"\npayload = "no-file"\n', "ask#1.payload: no-file does not exist"),
        (
            'kind = "mean"\n',
            'kind = "mean"\n[[ask]]\nkind = "mean"',
            "'mean' is asked more often than its times",
        ),
        (
            '[[ask]]\nkind = "mean"\n',
            "[deadlines]\njoin = -1\n[[ask]]\nkind='mean'",
            "deadlines: join must be",
        ),
        (
            '[[ask]]\nkind = "mean"\n',
            "[capacity]\nuploads = 0\n[[ask]]\nkind='mean'",
            "capacity: uploads and",
        ),
        (
            '[[ask]]\nkind = "mean"\n',
            "[patience]\ngrace = 1e9\n[[ask]]\nkind='mean'",
            "patience: grace must be",
        ),
    ],
)
def test_terms_that_cannot_work(
    site: Site, old: str, new: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.change("serve.toml", old, new)

    assert sentence in refused(site, "serve", capsys)


def test_nothing_to_ask(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write(
        "serve.toml", "ask = []\n" + (site / "serve.toml").read_text().replace('[[ask]]\nkind = "mean"\n', "")
    )

    assert "ask: is empty; say which kinds of sums are asked for" in refused(site, "serve", capsys)


# --- a client's own ---


def test_a_member_who_is_somebody_else(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.change("join-1.toml", "member = 1", "member = 2")

    assert "client.member: the key in client-1.key is enrolled as member 1, not 2" in refused(
        site, "join", capsys
    )


def test_a_member_with_a_new_key(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.replace_identity("client-1")

    found = refused(site, "join", capsys)

    assert "registry.secagg lists member 1 with another key than the one in client-1.key" in found


def test_a_member_who_was_removed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.enrol({2: "client-2", 3: "client-3"}, version=2)

    assert "registry.secagg has no member 1; have the authority enrol it" in refused(site, "join", capsys)


def test_a_member_beyond_all_ids(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.change("join-1.toml", "member = 1", "member = -1")

    assert "client.member: must be a whole number from 0 to 4294967295, not -1" in refused(
        site, "join", capsys
    )


def test_an_older_registry_than_one_seen_before(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    public = site.identities["client-1"].public
    with ClientLedger.open(site / "client-1.ledger", member=1, identity=public) as ledger:
        ledger.remember_registry(5, bytes(32))

    assert "client.registry: registry 1 is older than 5, seen before" in refused(site, "join", capsys)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("corrupt = 1", "corrupt = 2", "policy: min_contributors must be at least corrupt + 2"),
        ("max_sums = 2", "max_sums = 0", "policy: max_sums must be from 1 to 64"),
        ("max_sums = 2", "max_sums = 2\nmax_rho = -1", "policy: max_rho must be a number of at least 0"),
        ("max_cohort = 3", "max_cohort = 2000", "policy: max_cohort must be from min_cohort to 1024"),
        ('server = "127.0.0.1:7443"', 'server = "somewhere"', "client.server: 'somewhere' is no address"),
        ('server = "127.0.0.1:7443"', 'server = "a:0"', "client.server: 'a:0' has no port: name the one"),
        ("127.0.0.1:7443", "sums..example.org:7443", "client.server: 'sums..example.org:7443' is no address"),
        ("127.0.0.1:7443", f"{'a' * 80}:7443", "a host has 1 to 63 characters between two dots"),
        ("[input]", "[patience]\nsilence = 0\n[input]", "patience: silence must be a number of seconds"),
        ("[input]", "[input]\nanswer = 'a:b'", "input: needs either values, a file, or answer, a function"),
        ('values = "values-1.npz"', "", "input: needs either values, a file, or answer, a function"),
        ('values = "values-1.npz"', "answer = 'a'", "answer: must be 'package.module:object', not 'a'"),
        ('values = "values-1.npz"', "answer = 'no_such:f'", "cannot be imported (No module named 'no_such')"),
        ('values = "values-1.npz"', "answer = 'math:no_such'", "has no function or class 'no_such'"),
        ('values = "values-1.npz"', "answer = 'broken:f'", "(ZeroDivisionError in broken.py, line 1)"),
        ('values = "values-1.npz"', "answer = 'leaving:f'", "(SystemExit in leaving.py, line 1)"),
    ],
)
def test_what_a_client_cannot_work_with(
    site: Site,
    old: str,
    new: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # which gets the configuration's directory
    site.write("broken.py", "1 / 0")
    site.write("leaving.py", "raise SystemExit(0)")
    site.change("join-1.toml", old, new)

    assert sentence in refused(site, "join", capsys)


def test_a_table_that_does_not_fit_the_policy(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.change("sums.toml", "bits = 32\nbound = {count = 1000}", "bits = 8\nbound = {count = 1000}")

    assert "policy: part 'n' has 8 bits, but 3 clients need 12" in refused(site, "join", capsys)


def test_values_need_not_be_there_yet(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read for every question."""
    for member in CLIENTS:
        (site / f"values-{member}.npz").unlink()
    np.savez(site / "values-2.npz", other=[1.0])

    assert main(["join", "--check", str(site / "join-1.toml")]) == 0
    assert "in order" in capsys.readouterr().out

"""``--check`` and the logs warn of settings that work, but invite differences of totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from sims.cli import main
from sims.deploy.client_setup import load_client_setup
from sims.deploy.server_setup import load_server_setup
from tests.sims.deploy_site import Site

PROMISE = 'kind = "mean"\npromise = {clients = 3, dropouts = 0, colluders = 1}'
DIFFERENCES = "mean without noise: the difference of two totals"
DECLINES = "mean without noise: a client whose values cannot be used declines"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def add_noise(site: Site) -> None:
    """On all parts of the sum."""
    site.change("sums.toml", 'kind = "mean"', PROMISE)
    site.change(
        "sums.toml",
        "bound = {linf = 10.0}",
        'bound = {linf = 10.0}\nnoise = {scale = 1000.0, variance = "1000000"}',
    )
    site.change(
        "sums.toml", "bound = {count = 1000}", 'bound = {count = 1000}\nnoise = {scale = 1, variance = "100"}'
    )


def checked(site: Site, name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The cautions that a command prints."""
    assert main([name.partition("-")[0].removesuffix(".toml"), "--check", str(site / name)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("everything is in order")
    return [line.removeprefix("caution: ") for line in lines]


def warns(cautions: list[str]) -> bool:
    return any(caution.startswith(DIFFERENCES) for caution in cautions)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", False),  # nobody may be missing
        ("dropout = 0", "dropout = 0.4", True),
        ("min_cohort = 3\nmax_cohort = 3", "min_cohort = 3\nmax_cohort = 9", False),  # there are three
    ],
)
def test_a_server_warns_if_clients_may_be_missing(
    site: Site, old: str, new: str, expected: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if old:
        site.change("serve.toml", "malicious_server", "curious_server")
        site.change("serve.toml", old, new)
        site.change("serve.toml", "corrupt = 1", "corrupt = 0")
        site.change("serve.toml", "min_contributors = 3", "min_contributors = 2")
    assert warns(checked(site, "serve.toml", capsys)) == expected
    assert warns(load_server_setup(site / "serve.toml").cautions) == expected


def test_a_server_warns_if_sessions_may_have_different_clients(tmp_path: Path) -> None:
    """Nobody may drop out of a session, but the next one may be without a client."""
    site = Site(tmp_path, (1, 2, 3, 4))
    site.change("serve.toml", "max_cohort = 3", "max_cohort = 4")
    assert warns(load_server_setup(site / "serve.toml").cautions)
    site.change("serve.toml", "min_cohort = 3", "min_cohort = 4")
    assert not warns(load_server_setup(site / "serve.toml").cautions)


def test_noise_lifts_the_limit(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    add_noise(site)
    for name in ("serve.toml", "join-1.toml"):
        assert not warns(checked(site, name, capsys))


FUNCTIONS = """
import secagg

def fresh(asked):
    return {}

@secagg.static
def fixed(asked):
    return {}
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('values = "values-1.npz"', True),
        ('answer = "functions_of_cautions:fixed"', True),
        ('answer = "functions_of_cautions:fresh"', False),
    ],
)
def test_a_client_warns_of_values_that_do_not_depend_on_the_question(
    site: Site,
    source: str,
    expected: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(site.directory)
    site.write("functions_of_cautions.py", FUNCTIONS)
    site.change("join-1.toml", 'values = "values-1.npz"', source)
    assert warns(checked(site, "join-1.toml", capsys)) == expected
    assert warns(load_client_setup(site / "join-1.toml").cautions) == expected


@pytest.mark.parametrize("noise", ["on no part", "on one part", "on all parts"])
def test_a_client_warns_of_sums_that_it_may_decline(
    site: Site, noise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server sees who declines, and that its values do not fit. Only noise on all parts hides that."""
    if noise != "on no part":
        add_noise(site)
    if noise == "on one part":
        site.change("sums.toml", '\nnoise = {scale = 1, variance = "100"}', "")
    found = checked(site, "join-1.toml", capsys)
    assert any(caution.startswith(DECLINES) for caution in found) == (noise != "on all parts")


def test_a_server_warns_of_liars_that_could_end_sums(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """All three clients are needed, and one of them may lie."""
    assert any("lie about masks" in caution for caution in checked(site, "serve.toml", capsys))
    site.change("serve.toml", "corrupt = 1", "corrupt = 0")
    assert not any("lie about masks" in caution for caution in checked(site, "serve.toml", capsys))

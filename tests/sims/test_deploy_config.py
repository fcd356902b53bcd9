"""Configurations: every field of the library is there, and what is wrong is said with what would be right."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.net.settings import Capacity, Deadlines, Patience
from secagg.policy import Policy
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError
from sims.deploy.config import (
    CapacitySection,
    ConfigSection,
    DeadlinesSection,
    JoinConfig,
    PatienceSection,
    PolicySection,
    ServeConfig,
    load,
)
from sims.deploy.sum_specs_file import read_table
from tests.sims.deploy_site import JOIN, SERVE, SUMS


def problems(path: Path, model: type[ConfigSection]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, model)
    return [line.removeprefix(f"{path}: ") for line in str(caught.value).splitlines()]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.toml"
    path.write_text(text)
    return path


# --- completeness ---


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (PolicySection, Policy),
        (DeadlinesSection, Deadlines),
        (PatienceSection, Patience),
        (CapacitySection, Capacity),
    ],
)
def test_a_section_has_the_fields_and_defaults_of_the_library(
    section: type[ConfigSection], kind: type
) -> None:
    declared = {column.name: column.default for column in fields(kind)}
    assert set(section.model_fields) == set(declared)
    for name, field in section.model_fields.items():
        if not field.is_required():
            assert field.default == declared[name], name


def test_a_complete_policy(tmp_path: Path) -> None:
    extra = 'max_rho = 2.5\nadjacency = "replace"\nmax_query_bytes = 1000\nsecurity_bits = 50\n[input]'
    config = load(written(tmp_path, JOIN.replace("[input]", extra)), JoinConfig)

    assert config.policy.made() == Policy(
        trust=Trust.MALICIOUS,
        corrupt=1,
        min_cohort=3,
        max_cohort=3,
        min_contributors=3,
        max_sums=2,
        unnoised_sums=100,
        max_rho=2.5,
        adjacency="replace",  # type: ignore[arg-type]  # which a policy also takes by name
        max_query_bytes=1000,
        security_bits=50,
    )


def test_settings_of_a_server(tmp_path: Path) -> None:
    more = "[deadlines]\nmask = 5\n[patience]\ngrace = 2.5\n[capacity]\nuploads = 3\n"
    config = load(written(tmp_path, SERVE + more), ServeConfig)

    assert config.deadlines.made() == Deadlines(mask=5)
    assert config.patience.made() == Patience(grace=2.5)
    assert config.capacity.made() == Capacity(uploads=3)


def test_paths_are_relative_to_the_configuration(tmp_path: Path) -> None:
    config = load(written(tmp_path, SERVE.replace('"totals"', '"/var/totals"')), ServeConfig)

    assert config.server.key == tmp_path / "server.key"
    assert config.server.totals == Path("/var/totals")
    assert config.server.log is None
    assert str(config.server.listen) == "127.0.0.1:0"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SERVE.encode())

    assert load(path, ServeConfig).session.corrupt == 1


def test_a_log_by_name_and_on_the_standard_output(tmp_path: Path) -> None:
    for given, log in (("-", None), ("log.jsonl", tmp_path / "log.jsonl")):
        text = SERVE.replace("[session]", f'log = "{given}"\n[session]')
        assert load(written(tmp_path, text), ServeConfig).server.log == log


# --- mistakes ---


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("trust =", "trusst =", ["session.trusst: is not known here; did you mean trust?"]),
        ("[session]", "[sessions]", ["sessions: is not known here; did you mean session?"]),
        ('key = "server.key"', "", ["server.key: is missing"]),
        (
            'kind = "mean"',
            'kind = "mean"\nqqq = 1',
            ["ask#1.qqq: is not known here; there are kind, payload"],
        ),
        ("corrupt = 1", "corrupt = 1.5", ["session.corrupt: must be a whole number, not 1.5"]),
        ("corrupt = 1", "corrupt = true", ["session.corrupt: must be a whole number, not True"]),
        ("dropout = 0", "dropout = 'a'", ["session.dropout: must be a number, not 'a'"]),
        ('kind = "mean"', "kind = 1", ["ask#1.kind: must be a text in quotes, not 1"]),
        ('"server.key"', "7", ["server.key: must be the name of a file, in quotes, not 7"]),
        ('"server.key"', '""', ["server.key: must be the name of a file, in quotes, not ''"]),
        ('"127.0.0.1:0"', "7443", ["server.listen: must be a text such as 'localhost:7443', not 7443"]),
        (
            '"127.0.0.1:0"',
            '"::1:7443"',
            ["server.listen: '::1:7443' is no address: write an IPv6 host in brackets, as [::1]:7443"],
        ),
        (
            '"malicious_server"',
            '"malicous"',
            ["session.trust: 'malicous' is no choice; did you mean malicious_server?"],
        ),
        ("sessions = 1", "graph = 'x'", ["session.graph: 'x' is no choice; there are auto, complete, ring"]),
        ("[[ask]]", "[ask]", ["ask: must be an array of tables, not {'kind': 'mean'}"]),
        (
            "corrupt = 1\ndropout = 0",
            "corupt = 1\ndropout = 'no'\nx = 1",
            [
                "session.dropout: must be a number, not 'no'",
                "session.corupt: is not known here; did you mean corrupt?",
                "session.x: is not known here; there are trust, corrupt, dropout, min_cohort, max_cohort, "
                "min_contributors, graph, neighbours, security_bits, liveness_bits, "
                "key_agreement, name_members, min_difference, sums, sessions, pause, "
                "first_round",
            ],
        ),
    ],
)
def test_mistakes_in_a_configuration(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert old in SERVE
    assert problems(written(tmp_path, SERVE.replace(old, new)), ServeConfig) == expected


def test_a_table_in_place_of_a_section(tmp_path: Path) -> None:
    found = problems(written(tmp_path, "server = 1\n" + SERVE.replace("[server]", "[x]")), ServeConfig)

    assert found[0] == "server: must be a table, not 1"


def test_a_long_value_is_not_quoted_in_full(tmp_path: Path) -> None:
    (found,) = problems(
        written(tmp_path, SERVE.replace("corrupt = 1", f"corrupt = '{'9' * 500}'")), ServeConfig
    )

    assert len(found) < 150


@pytest.mark.parametrize("value", [f"0x{'f' * 5000}", f"{{{'a.' * 3000}a = 1}}"])
def test_a_value_that_python_cannot_show_is_not_quoted_at_all(tmp_path: Path, value: str) -> None:
    found = problems(written(tmp_path, SERVE.replace('"server.key"', value)), ServeConfig)

    assert found == [
        "server.key: must be the name of a file, in quotes, not a value that is too long to show"
    ]


# --- the table of sums ---

EVERYTHING = """
[[sum]]
kind = "update"
times = 3
group = "model"
promise = {clients = 20, dropouts = 2, colluders = 1, removable = true}

[[sum.part]]
name = "delta"
size = 5
bits = 40
bound = {l2 = 1.0}
noise = {scale = 1000.0, variance = "250001/2"}

[[sum.part]]
name = "votes"
size = 2
bits = 24
bound = {count = 3, total = 4}
noise = {scale = 1, variance = 12.5}

[[sum]]
kind = "plain"

[[sum.part]]
name = "loss"
size = 1
bits = 32
bound = {linf = 5}

[[sum.part]]
name = "people"
size = 1
bits = 32
bound = {count = 7}

[[sum.part]]
name = "parity"
size = 3
bits = 1
bound = "residue"
"""


def test_a_complete_table(tmp_path: Path) -> None:
    noisy = (
        Part(
            name="delta",
            size=5,
            bits=40,
            bound=L2(1.0),
            noise=Noise(scale=1000.0, variance=Fraction(250001, 2)),
        ),
        Part(
            name="votes", size=2, bits=24, bound=Count(3, 4), noise=Noise(scale=1, variance=Fraction(25, 2))
        ),
    )
    plain = (
        Part(name="loss", size=1, bits=32, bound=LInf(5)),
        Part(name="people", size=1, bits=32, bound=Count(7)),
        Part(name="parity", size=3, bits=1, bound=Residue()),
    )
    promise = NoiseAssumptions(clients=20, dropouts=2, colluders=1, removable=True)
    expected = Table(
        {
            "update": SumSpec(parts=noisy, times=3, group="model", promise=promise),
            "plain": SumSpec(parts=plain),
        }
    )

    assert read_table(written(tmp_path, EVERYTHING)).digest == expected.digest


ABOVE = "a bound must be above zero, from 2^-500 to 2^500"
BITS = "the bits of part '{}' must be a whole number from 1 to 64"
LETTERS = "must be a letter followed by up to 63 of A-Z a-z 0-9 _ . -"
BOUNDS = "must be one of {l2 = 1.0}, {linf = 1.0}, {count = 10}, {count = 10, total = 10} or 'residue', not "


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{linf = 10.0}", "{l3 = 1}", [f"sum#1.part#1.bound: {BOUNDS}{{'l3': 1}}"]),
        ("{linf = 10.0}", "{linf = 1, l2 = 1}", [f"sum#1.part#1.bound: {BOUNDS}{{'linf': 1, 'l2': 1}}"]),
        ("{linf = 10.0}", "{linf = 0}", [f"sum#1.part#1.bound: {ABOVE}"]),
        ("{count = 1000}", "'residu'", [f"sum#1.part#2.bound: {BOUNDS}'residu'"]),
        ("size = 3", "sise = 3", ["sum#1.part#1.sise: is not known here; did you mean size?"]),
        ("bits = 32", "bits = 65", [f"sum#1.part#{n}: {BITS.format(p)}" for n, p in ((1, "x"), (2, "n"))]),
        ('name = "n"', 'name = "x"', ["sum#1: two parts of a spec have the same name"]),
        ('kind = "mean"', 'kind = "1"', [f"sum: the name of a kind of sum {LETTERS}"]),
        ('kind = "mean"', 'kind = "m"\ntimes = 0', ["sum#1: times must be a whole number from 1 to 65536"]),
        (
            "bound = {linf = 10.0}",
            "bound = {linf = 10.0}\nnoise = {scale = 1.0, variance = 'x'}",
            ["sum#1.part#1.noise.variance: must be a number such as 12.5 or '25/2', not 'x'"],
        ),
        (
            "bound = {linf = 10.0}",
            "bound = {linf = 10.0}\nnoise = {scale = 1.0, variance = '1e9999999999'}",
            ["sum#1.part#1.noise.variance: must be a number such as 12.5 or '25/2', not '1e9999999999'"],
        ),
        (
            "bound = {linf = 10.0}",
            "bound = {linf = 10.0}\nnoise = {scale = 1.0, variance = 5}",
            ["sum#1: a spec needs a promise if one of its parts has noise, and only then"],
        ),
        (
            'kind = "mean"',
            'kind = "mean"\npromise = {clients = 2, dropouts = 2, colluders = 0}',
            ["sum#1: of 2 clients, 2 may drop out and 0 collude: no client is left to add noise"],
        ),
        (SUMS, SUMS + SUMS, ["sum#2.kind: 'mean' is there twice; name one of them otherwise"]),
        (SUMS, "sum = []", ["sum: a table needs at least one kind of sum"]),
    ],
)
def test_mistakes_in_a_table(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    path = written(tmp_path, SUMS.replace(old, new))

    with pytest.raises(ConfigError) as caught:
        read_table(path)

    assert [line.removeprefix(f"{path}: ") for line in str(caught.value).splitlines()] == expected

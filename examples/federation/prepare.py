"""Makes the files of a federation of one server and five sites: `python prepare.py federation`.

Every party makes its own key in reality, and hands over its certificate only. For NVFlare, the directories
that this makes belong into `local` of the startup kits: federation/site-1 into site-1/local, and so on. For
Flower, `secagg join federation/site-1/secagg.toml --flower ...` runs a site.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SITES = range(1, 6)
MODEL_FILES = ("digits_net.py",)  # at the server and at every site
DATA_FILES = ("digits_loaders.py",)  # at the sites only

SERVER = """
[deploy]
clients = 5
listen = "engine"          # Flower or NVFlare carries the connections
key = "server.key"
certificate = "server.pem"
authority = "authority.pem"
registry = "registry.secagg"
run = "run"                # the run directory, with the server's ledger
min_cohort = 4             # sites that must be connected before a round begins
metrics = { listen = "off" }
patience = { grace = 10.0 }  # seconds for which a round waits for a site that was killed
"""

SITE = """
[client]
member = {site}
server = "engine"
key = "site-{site}.key"
certificate = "site-{site}.pem"
server_certificate = "server.pem"
authority = "authority.pem"
registry = "registry.secagg"
scenario = "train.toml"    # this site's copy of the terms
ledger = "site-{site}.ledger"

[policy]                   # no job and no server can loosen it
trust = "malicious_server"
corrupt = 1
min_cohort = 4
max_cohort = 5
min_contributors = 3
max_sums = 64
unnoised_sums = 0          # every sum has noise
max_rho = {rho}

[input]
data = "digits_loaders:loaders"
state = "site-{site}.state"
model = "final.npz"

[input.arguments]          # of the function that returns the data
site = {site}

[patience]
handshake = 20.0           # seconds after which the site tries again to reach the server
"""


def secagg(*arguments: str, where: Path) -> None:
    subprocess.run([sys.executable, "-m", "secagg", *arguments], cwd=where, check=True)


def make_keys(directory: Path) -> None:
    for name in ("authority", "server", *(f"site-{site}" for site in SITES)):
        secagg("keygen", name, where=directory)
    members = [word for site in SITES for word in ("--member", f"{site}=site-{site}.pem")]
    secagg("enrol", *members, where=directory)


def hand_out(directory: Path, party: str, *names: str) -> Path:
    """Give `party` the public files, its key, and those of this directory that are called `names`."""
    local = directory / party
    local.mkdir()
    for name in ("authority.pem", "registry.secagg", "registry.pem", "server.pem"):
        shutil.copy(directory / name, local)
    for each in directory.glob(f"{party}.*"):
        shutil.copy(each, local)
    for name in names:
        shutil.copy(HERE / name, local)
    return local


def prepare_server(directory: Path) -> None:
    local = hand_out(directory, "server", *MODEL_FILES)
    (local / "secagg.toml").write_text((HERE / "train.toml").read_text() + SERVER)


def prepare_site(directory: Path, site: int, rho: float) -> None:
    local = hand_out(directory, f"site-{site}", "train.toml", *MODEL_FILES, *DATA_FILES)
    with (local / "train.toml").open("a") as file:
        file.write("\n[deploy]\nclients = 5\n")
    (local / "secagg.toml").write_text(SITE.format(site=site, rho=rho))
    secagg("join", "--new-ledger", "secagg.toml", where=local)


def main() -> None:
    from sims.deploy.run_terms import run_terms

    if len(sys.argv) != 2:
        sys.exit("name the directory to make: python prepare.py federation")
    directory = Path(sys.argv[1]).resolve()
    if directory.exists():
        sys.exit(f"{directory} exists: name another directory")
    directory.mkdir(parents=True)
    make_keys(directory)
    prepare_server(directory)
    budget = run_terms(directory / "server" / "secagg.toml", directory).algorithm.max_rho
    assert budget is not None
    for site in SITES:
        prepare_site(directory, site, round(1.001 * budget, 6))


if __name__ == "__main__":
    main()

"""Run directories: all that is kept of one simulation, and enough to go on with it after a crash.

    with RunDirectory(path).locked() as run:
        run.write_json("run.json", facts)

A file is replaced as a whole or not at all, and a line is there or not. Disk errors and
damaged files raise a `ConfigError` whose message is meant for the user.
"""

from sims.records.directory import RunDirectory, find_runs

__all__ = ["RunDirectory", "find_runs"]

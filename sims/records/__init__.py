"""Run directories: the files of one simulation, from which it can also be resumed after a crash.

    with RunDirectory(path).locked() as run:
        run.write_json("run.json", facts)

Files are replaced atomically, lines appended as a whole. Disk errors and damaged files raise `ConfigError`.
"""

from sims.records.directory import RunDirectory, find_runs

__all__ = ["RunDirectory", "find_runs"]

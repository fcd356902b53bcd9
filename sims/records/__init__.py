"""Reads and writes run directories: the files of one simulation, also those to resume it after a crash.

    with RunDirectory(path).locked() as run:
        run.write_json("run.json", facts)

Files are replaced atomically, and lines appended completely. Disk errors and damage raise `ConfigError`.
"""

from sims.records.run_directory import RunDirectory, find_runs

__all__ = ["RunDirectory", "find_runs"]

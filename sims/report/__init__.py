"""Writes the report of one or several runs: a single HTML file that loads no other file."""

from sims.report.page import page, write_report
from sims.report.reported_run import ReportedRun, read_runs

__all__ = ["ReportedRun", "page", "read_runs", "write_report"]

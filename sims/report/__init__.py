"""The report of a run, or of several: one page of HTML that opens from disk and loads nothing."""

from sims.report.page import page, write_report
from sims.report.reported_run import ReportedRun, read_runs

__all__ = ["ReportedRun", "page", "read_runs", "write_report"]

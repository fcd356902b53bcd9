"""The report of a run, or of several: one page of HTML that opens from disk and loads nothing."""

from sims.report.chapter import Chapter, read_chapters
from sims.report.page import page, write_report

__all__ = ["Chapter", "page", "read_chapters", "write_report"]

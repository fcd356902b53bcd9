"""The report of a run, or of several: one page of HTML that opens from disk and loads nothing."""

from sims.report.chapter import Chapter
from sims.report.page import page

__all__ = ["Chapter", "page"]

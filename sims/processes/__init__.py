"""Worker processes for simulations: started fast, killed at will, never orphaned."""

from sims.processes.crew import Crew, CrewFailed, WorkerGone, open_crew
from sims.processes.line import Line, LineClosed
from sims.processes.news import Ended, News, Said

__all__ = ["Crew", "CrewFailed", "Ended", "Line", "LineClosed", "News", "Said", "WorkerGone", "open_crew"]

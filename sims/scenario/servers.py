"""The optimiser of a scenario's server."""

from __future__ import annotations

from protocols.server_optimiser import PARAMETERS, ServerOptimiser
from secagg.errors import ParameterError
from sims.deploy.problems import Problems, nearest, shown
from sims.scenario.settings import ServerSection, Settings


def check(settings: Settings, problems: Problems) -> bool:
    """Whether the table [server] makes sense, if there is one; what does not is added to `problems`."""
    section = settings.server
    if section is None:
        return True
    if section.kind not in PARAMETERS:
        problems.add(
            "server.kind", f"{shown(section.kind)} is not known; {nearest(section.kind, list(PARAMETERS))}"
        )
        return False
    known = PARAMETERS[section.kind]
    strange = [name for name in section.parameters if name not in known]
    for name in strange:
        problems.add(f"server.{name}", f"is no parameter of {section.kind}; {nearest(name, known)}")
    if strange:
        return False
    try:
        optimiser(section)
    except ParameterError as error:
        subject = str(error).partition(" ")[0]
        problems.add(f"server.{subject}" if subject in known else "server", str(error))
        return False
    return True


def optimiser(section: ServerSection) -> ServerOptimiser:
    """Raises `ParameterError` for values that it cannot have."""
    return ServerOptimiser(kind=section.kind, **section.parameters)

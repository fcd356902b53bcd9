"""The clients of a training server: who is connected, and the sessions in which they are summed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from protocols.query_encoding import query_content
from secagg.errors import ExpiredRegistry, ParameterError, TooFewClients
from secagg.events import ServerEvent
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.machine_hooks import ServerHooks
from secagg.net.server import Server
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from sims.coordination.network_session import NetworkSession, NetworkSessionSettings
from sims.coordination.transport import SessionPlan
from sims.deploy.config import DeploySection
from sims.deploy.renewal import LiveServerCredentials
from sims.deploy.run_terms import RunTerms
from sims.scenario.federated_data import draw_cohort, draw_limited
from sims.scenario.participation import Participations

LOOK: Final = 10.0  # seconds between two lines of the log while no batch of clients is there
_GLANCE: Final = 0.1  # seconds between two looks at who is connected


class ConnectedClients:
    """The transport of a training server: clients that are connected to it. Implements `Transport`."""

    def __init__(
        self,
        section: DeploySection,
        terms: RunTerms,
        credentials: LiveServerCredentials,
        server: Server,
        call: Any,
        on_event: Callable[[ServerEvent], None],
        participations: Participations | None = None,
    ) -> None:
        self._section = section
        self._terms = terms
        self._credentials = credentials
        self._server = server
        self._call = call
        self._on_event = on_event
        self._participations = participations
        self._session: NetworkSession | None = None
        self._invited: tuple[int, ...] = ()
        self._known: tuple[int, ...] = ()  # clients that were connected when the round began

    @property
    def needs_new_session(self) -> bool:
        return self._session is not None and set(self._session.members) != set(self._invited)

    def clients(self) -> tuple[int, ...]:
        """Return the ids of connected clients. Without a draw (`cohort.per_round`), there are at most as many
        as the algorithm's sums are made for."""
        connected: tuple[int, ...] = self._call(connected_ids, self._server)
        drawn = self._terms.settings.cohort.per_round is not None
        self._known = connected if drawn else connected[: self._terms.algorithm.clients]
        return self._known

    def draw(self, number: int) -> tuple[int, ...]:
        """Return which of the clients that `clients` returned last are invited to round `number`."""
        if self._participations is not None:
            return draw_limited(self._terms.settings, self._participations, self._known, number)
        return draw_cohort(self._terms.settings, self._known, number)

    def note_round(self, number: int) -> None:
        """Record that the clients of the current session took part in round `number`."""
        if self._participations is not None:
            self._participations.note(number, self._invited)

    def session(self, plan: SessionPlan) -> NetworkSession:
        settings = NetworkSessionSettings(
            make_machine=partial(session_machine, self._section, self._terms, self._credentials, plan=plan),
            least=self._section.min_cohort,
            deadlines=self._section.deadlines.made(),
            on_event=self._on_event,
        )
        self._invited = plan.members
        try:
            self._session = NetworkSession(plan, self._server, self._call, settings)
        except ExpiredRegistry as error:  # meanwhile; the next round waits for another one
            raise TooFewClients(str(error)) from None
        return self._session

    def announce(self, round_info: Any) -> None:
        """Do nothing: clients learn from the next query, or from the outcome, how a round has ended."""


def session_machine(
    section: DeploySection,
    terms: RunTerms,
    credentials: LiveServerCredentials,
    hooks: ServerHooks,
    plan: SessionPlan | None = None,
) -> ServerMachine:
    """Return the server's machine for a session. Raise `SecaggError` if the settings do not allow one."""
    channel, algorithm = terms.settings.channel, terms.algorithm
    least = channel.corrupt + 2
    if section.min_cohort < least:
        raise ParameterError(
            f"min_cohort must be at least {least}, two more than channel.corrupt", parameter="min_cohort"
        )
    if algorithm.needs_all_clients and section.min_cohort < algorithm.clients:
        raise ParameterError(
            f"min_cohort must be {algorithm.clients}: {terms.settings.algorithm.name} needs all clients in "
            "every round",
            parameter="min_cohort",
        )
    params = SessionParams(
        trust=Trust(channel.trust),
        corrupt=channel.corrupt,
        sums=channel.sums,
        dropout=channel.dropout,
        graph=GraphChoice(channel.graph),
        key_agreement=KeyAgreement(channel.key_agreement),
        min_difference=channel.min_difference,
        name_members=channel.min_difference > 0,
        min_cohort=section.min_cohort,
        max_cohort=algorithm.clients,
        min_contributors=least if section.min_contributors is None else section.min_contributors,
    )
    more: dict[str, Any] = {} if plan is None else {"history": plan.history, "barred": plan.settings.barred}
    return ServerMachine(
        table=terms.table,
        params=params,
        registry=credentials.registry if params.trust is Trust.MALICIOUS else None,
        now=int(time.time()),
        content_of=query_content,
        hooks=hooks,
        **more,
    )


async def connected_ids(server: Server) -> tuple[int, ...]:
    return server.connected


async def others_came(server: Server, connected: tuple[int, ...]) -> None:
    """Wait until other clients are connected than `connected`, but no longer than `LOOK` seconds."""
    with trio.move_on_after(LOOK):
        while server.connected == connected:  # noqa: ASYNC110  # clients come one by one, and seldom
            await trio.sleep(_GLANCE)

"""Keeps a hospital's service in touch with its federations: a SuperNode and an executor for each.

Each federation has its own connection to its coordinator. All of them lead to one service, which
answers one packet at a time.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from party.errors import JoinError, NodeStartError
from party.flower.client_app import build
from party.flower.executor import LOOPBACK, Executor, quiet_environment, supernode_command
from party.people_news import tell_people
from party.service import PartyService
from party.site.joining import CoordinatorDoor
from party.site.membership import SiteMembership, place_of
from party.site.proxy import proxy_to
from party.site.site import Site
from pate_fed.nodes import KeptChild
from pate_fed.nodes.forwarding import Forwarder
from pate_fed.nodes.notices import LAST_S

_IDLE_S = 0.5
"""How often the service may read the decisions of its people."""

_ASK_S, _ASK_AGAIN_S = 60.0, 10.0
"""How often a coordinator is asked for its members, and how soon again after a failure."""

_PAUSES = 5.0, 60.0
"""Seconds before a SuperNode is started again: at first, and at most."""

_LOOK_S = 5.0

COPIES_FILE = "audit-copies.json"

_log = logging.getLogger(__name__)


def serve(
    service: PartyService,
    site: Site,
    *,
    stopped: threading.Event,
    memberships: Sequence[SiteMembership] | None = None,
) -> None:
    """Keep a SuperNode for each federation and answer its messages, until told to stop."""
    # The executors read it too: Flower's clients ask the environment for a proxy.
    os.environ.update(quiet_environment(os.environ))
    site.path("flower").mkdir(mode=0o700, exist_ok=True)
    lines: list[_Line] = []
    copies = Forwarder(
        site.settings.audit, service.audit, places=site.path(COPIES_FILE), program="pate-party"
    )
    copying = threading.Thread(target=copies.run, args=(stopped,), daemon=True)
    telling = threading.Thread(target=tell_people, args=(site, stopped), daemon=True)
    try:
        for membership in site.current if memberships is None else memberships:
            lines.append(_Line(service, membership, stopped))
        for line in lines:
            line.start()
        copying.start()
        telling.start()
        while not stopped.wait(_IDLE_S):
            service.idle()
    finally:
        stopped.set()
        for line in lines:
            line.join()
        if copying.ident is not None:
            copying.join()
        if telling.ident is not None:
            telling.join(LAST_S)
        service.close()
    for line in lines:
        if line.fault is not None:
            raise line.fault


class _Line:
    def __init__(
        self, service: PartyService, membership: SiteMembership, stopped: threading.Event
    ) -> None:
        self.fault: Exception | None = None
        self._service = service
        self._membership = membership
        self._stopped = stopped
        self._node = service.federation(membership.name)
        self._executor = Executor(
            build(lambda _: self),
            address=f"{LOOPBACK}:{membership.settings.node_port}",
            secret=membership.node_secret,
        )
        self._supernode = _supernode(membership, is_revoked=lambda: self._node.is_revoked)
        self._node.supernode = self._supernode
        self._thread = threading.Thread(target=self._run, name=membership.name)

    def receive(self, packet: bytes) -> bytes:
        """Answer a packet of this federation; see `PartyService.receive`."""
        return self._service.receive(packet, self._membership.name)

    def start(self) -> None:
        """Begin to answer."""
        self._membership.path("flower").mkdir(mode=0o700, exist_ok=True)
        self._thread.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def join(self) -> None:
        """Wait until all started work has ended."""
        if self._thread.ident is None:  # another line could not be made
            self._executor.close()
        else:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._supernode.start()
            self._executor.run(self._stopped, may_answer=lambda: self._node.has_heard)
        except Exception as error:
            self.fault = error
            self._stopped.set()  # a node that answers no more is no node
        finally:
            self._executor.close()
            self._supernode.stop()

    def _listen(self) -> None:
        """Ask now and then for the members, and report our audit log's head."""
        name = self._membership.name
        while not self._stopped.is_set():
            pause_s = _ASK_S
            try:
                sent = self._service.sent
                door = CoordinatorDoor(self._membership, clock=time.time, sent=sent)
                with closing(door):
                    self._node.ask(door)
            except Exception as error:
                _log.warning(
                    "the coordinator of %s does not say who is a member: %s",
                    name,
                    type(error).__name__,
                )
                pause_s = _ASK_AGAIN_S
            self._stopped.wait(pause_s)


def _supernode(membership: SiteMembership, *, is_revoked: Callable[[], bool]) -> KeptChild:
    """Return a federation's SuperNode, to be kept.

    After a kill the coordinator turns it away for about a minute, and it gives up. So does one
    whose key is not approved yet. Both pass: it is started again every few seconds, more rarely
    where the coordinator has revoked the hospital, and not while nobody listens at the
    coordinator's address: a start costs seconds of a core.
    """
    settings = membership.settings
    return KeptChild(
        "the SuperNode",
        supernode_command(membership, port=settings.node_port),
        environment={**os.environ, "FLWR_HOME": str(membership.path("flower"))},
        logger=_log,
        fault_code=NodeStartError.code,
        log=membership.supernode_log,
        pauses=_PAUSES,
        backs_off=lambda _: is_revoked(),
        may_start=lambda: _is_open(settings.address),
    )


def _is_open(address: str) -> bool:
    """Tell whether somebody listens there; behind a proxy it cannot be seen."""
    place = place_of(address)
    try:
        if proxy_to(place[0], os.environ) is not None:
            return True
        with socket.create_connection(place, timeout=_LOOK_S):
            return True
    except JoinError:
        return True  # the variable names no proxy: the SuperNode's own log says so
    except OSError:
        return False

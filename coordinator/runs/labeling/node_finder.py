"""Which node is which party of a run: a node is the party whose signature it gives."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from coordinator.errors import SetupError
from coordinator.runs.labeling.job import RunContext
from coordinator.runs.labeling.messenger import Messenger, SilenceError, cause_of
from protocols import wire
from protocols.errors import HistoryError, ProtocolError, RefusedError

_log = logging.getLogger(__name__)

_MOST_NAMED = 10
"""Parties that one sentence names."""


class NodeFinder:
    """Finds the parties of a run among the nodes, and notes them in the roster."""

    def __init__(self, context: RunContext, messenger: Messenger) -> None:
        self._context = context
        self._transport = context.job.transport
        self._round = context.round
        self._roster = context.roster
        self._messenger = messenger

    def offer_run(self) -> None:
        """Offer the run to the nodes; a signature tells which party a node is.

        A node of no party of the run may answer anything.
        """
        nodes = self._transport.nodes()
        offer = wire.pack([self._round.setup.offer.frame])
        names = {member.node: member.name for member in self._roster.members}
        failures: dict[int, str] = {}
        restored: dict[int, bytes] = {}
        for node, answer in self._transport.exchange(dict.fromkeys(nodes, offer)).items():
            who = names.get(node, f"node {node}")
            try:
                for frame in self._messenger.read(answer):
                    self._roster.nodes[self._round.receive(frame)] = node
            except RefusedError as error:
                failures[node] = f"{who}: a refusal [{cause_of(error)}]"
            except ProtocolError as error:
                failures[node] = f"{who}: {error} [{error.code}]"
                if isinstance(error, HistoryError):
                    restored[node] = bytes.fromhex(error.peer)
            except SilenceError as error:
                failures[node] = f"{who}: {error.code}"
        self._context.store.statements.save(self._round.statements)
        if restored:  # a journal below its party's signed counter: the party is told, and stops
            said = {node: self._roster.said_by(party) for node, party in restored.items()}
            self._transport.exchange({node: wire.pack(frames) for node, frames in said.items()})
        self._require_all(failures)

    def _require_all(self, failures: Mapping[int, str]) -> None:
        """Require every party, unless the run may do without some.

        `failures` are the faults of some nodes' answers, in words.
        """
        if self._context.goes_on_without_some(self._round.exchange.heard):
            for failure in failures.values():
                _log.warning("an offer was not answered as it must: %s", failure)
            if self._round.missing:
                self._round.go_on_without_missing()
            return
        found = self._roster.nodes.values()
        missing = self._round.missing
        seated = [failure for node, failure in failures.items() if node in found]
        if missing or seated:
            silent = [one for one in self._roster.members if one.identity.fingerprint in missing]
            heard = [*seated, *failures.values()] + [
                f"no word of {one.name}" for one in silent if one.node not in failures
            ]
            said = "; ".join(heard[:_MOST_NAMED])
            raise SetupError(
                f"all {len(self._round.seats)} parties must take part",
                f"{len(self._round.seats) - len(missing)} of them ({said})",
            )

    def find_again(self) -> None:
        """Find the parties of a resumed run at their nodes."""
        self._transport.nodes()
        self.look_for_missing()
        least = self._context.threshold
        if len(self._roster.nodes) < least:
            missing = [seat for seat in self._round.seats if seat not in self._roster.nodes]
            names = ", ".join(self._roster.names(missing)[:_MOST_NAMED])
            raise SetupError(
                f"at least {least} parties must be there for the run to go on",
                f"{len(self._roster.nodes)} (without {names})",
            )

    def look_for_missing(self) -> None:
        """Find the party of each node by its signature; changes nothing there.

        It waits for nobody: a node that was ready may be gone by then. A party that cannot be
        reached is silent until it can.
        """
        known = set(self._roster.nodes.values())
        if len(known) == len(self._round.seats):
            return
        waiting = [node for node in self._transport.nodes_now() if node not in known]
        if not waiting:
            return
        packet = wire.pack([self._round.setup.signed_record.frame])
        for node, answer in self._transport.exchange(dict.fromkeys(waiting, packet)).items():
            with suppress(ProtocolError, SilenceError):
                for frame in self._messenger.read(answer):
                    self._roster.nodes.setdefault(self._round.setup.recognize(frame), node)

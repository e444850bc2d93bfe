"""The public queries: `pool show`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from coordinator.cli.terminal import DEFAULT_HOME, HomeOption, open_coordinator
from pate_fed.nodes.command_line import Commands, show

pool_app = Commands("The public queries and their states.")


@pool_app.command("show")
def show_pool(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run that asks the pool.")],
    everything: Annotated[bool, typer.Option("--all", help="List answered queries, too.")] = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Show the state of each query of a run: answered, refused by hospitals, lost, not asked."""
    from coordinator.runs.query_states import QueryState  # noqa: PLC0415 - keeps --help fast

    coordinator = open_coordinator(home)
    request, found = coordinator.queries(run)
    counted = Counter(query.state for query in found)
    counts = ", ".join(f"{counted[state]} {state.value}" for state in QueryState if counted[state])
    rest = [query for query in found if everything or query.state is not QueryState.ANSWERED]
    show(
        {"run": run, "source": request.source, "queries": [asdict(query) for query in found]},
        (
            f"{run} asks {len(found)} rows of {request.source}: {counts}.",
            *(f"{query.query_id:>8}  {query.words}" for query in rest),
        ),
    )

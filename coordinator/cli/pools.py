"""The public queries: `pool show`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from coordinator.cli.console import DEFAULT_HOME, FormatOption, HomeOption, open_coordinator, show
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import print_json

pool_app = typer.Typer(
    help="The public queries and their states.",
    no_args_is_help=True,
    add_completion=False,
)


@pool_app.callback()
def pool() -> None:
    """Make `show` a command of a group, though it is the only one."""


@pool_app.command(name="show")
def show_pool(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run that asks the pool.")],
    everything: Annotated[bool, typer.Option("--all", help="List answered queries, too.")] = False,
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Show the state of each query of a run: answered, refused by hospitals, lost, not asked."""
    from coordinator.runs.query_states import QueryState  # noqa: PLC0415 - keeps --help fast

    coordinator = open_coordinator(home)
    request, found = coordinator.queries(run)
    if output_format is Format.JSON:
        print_json({"run": run, "source": request.source, "queries": [q.as_table() for q in found]})
        return
    counted = Counter(query.state for query in found)
    counts = ", ".join(f"{counted[state]} {state.value}" for state in QueryState if counted[state])
    show(f"{run} asks {len(found)} rows of {request.source}: {counts}.")
    rest = [query for query in found if everything or query.state is not QueryState.ANSWERED]
    show(*(f"{query.place:>8}  {query.words}" for query in rest))

"""The hospital's page, and what left the hospital, at the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from party.cli.terminal import DEFAULT_SITE, ByOption, SiteOption, decider, tell
from party.owner import PAGE, open_records
from pate_fed.nodes.command_line import show
from pate_fed.nodes.terminal import minute


def page(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of this machine's own network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=2**16 - 1, help="Port; 0 for any free one.")] = 0,
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Serve this hospital's page on this machine alone, until Ctrl-C.

    It prints a link that works once, for ten minutes. Its reader decides in your name.
    """
    from party.page import serve_page  # noqa: PLC0415 - keeps --help fast

    with open_records(site, origin=PAGE) as opened:
        who = decider(by)
        tell(f"Open this link in a browser of this machine. It works once; you act as {who}.")
        serve_page(opened, by=who, host=host, port=port, tell=typer.echo)


def sent(
    last: Annotated[int, typer.Option(metavar="N", min=1, help="Newest messages to show.")] = 20,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """List what left this hospital: each message with its bytes, digest, time and meaning."""
    from party.people_tables import sent_table  # noqa: PLC0415 - keeps --help fast

    with open_records(site) as opened:
        table = sent_table(opened, most=last)
    show(
        table,
        (
            f"{table['messages']} message(s) left this hospital, {table['bytes']} bytes; "
            f"{len(table['shown'])} of {table['rows']} lines:",
            *(
                f"{minute(one['last_at'])}  {one['kind']}, {one['times']} time(s), {one['bytes']} "
                f"bytes, to {one['federation']}; SHA-256 {one['sha256']}: {one['meaning']}"
                for one in table["shown"]
            ),
        ),
    )

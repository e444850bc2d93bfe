"""Receivers of messages on loopback: a mail server and a webhook, each a thread of real sockets."""

from __future__ import annotations

import base64
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast


@dataclass
class Mails:
    """A mail server: what it saw, and how it behaves."""

    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    password: str = ""
    refuses: str = ""
    """A word in a mail that it refuses for good; "*" for any."""

    def __post_init__(self) -> None:
        self.came = threading.Event()


@dataclass
class Hooks:
    """A webhook: the requests that it saw, and its answer."""

    port: int = 0
    status: int = 204
    location: str = ""
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def mail_server(mails: Mails, *, tls: ssl.SSLContext | None = None) -> Iterator[Mails]:
    """Serve mail on loopback; with `tls` from the first byte on."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline():
                said = line.decode("ascii").rstrip("\r\n")
                mails.commands.append(said)
                match said.split(" ")[0].upper():
                    case "EHLO" | "HELO":
                        self.say("250-here\r\n250 AUTH PLAIN")
                    case "AUTH":
                        given = base64.b64decode(said.split(" ")[-1]).split(b"\0")[-1].decode()
                        self.say("235 ok" if given == mails.password else f"535 not {given}")
                    case "DATA":
                        self.say("354 go on")
                        self.take()
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("250 ok")

        def take(self) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            content = b"".join(lines)
            mail = cast(EmailMessage, message_from_bytes(content, policy=default))
            if mails.refuses and (mails.refuses == "*" or mails.refuses in str(mail["Subject"])):
                self.say("554 no")
                return
            mails.mails.append(mail)
            self.say("250 taken")
            mails.came.set()

        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with _serving(_Threading(("127.0.0.1", mails.port), Handler), tls) as mails.port:
        yield mails


@contextmanager
def webhook(hooks: Hooks, *, tls: ssl.SSLContext | None = None) -> Iterator[Hooks]:
    """Serve a webhook on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hooks.seen.append((self.path, dict(self.headers), body))
            self.send_response(hooks.status)
            if hooks.location:
                self.send_header("Location", hooks.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the base's

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's
            """Say nothing."""

    with _serving(HTTPServer(("127.0.0.1", hooks.port), Handler), tls) as hooks.port:
        yield hooks


class _Threading(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a caller that goes away."""


@contextmanager
def _serving(server: socketserver.TCPServer, tls: ssl.SSLContext | None) -> Iterator[int]:
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Messages to people about a node: by mail, and to a webhook; off by default.

A source tells the facts that hold now, as the node's database has them: so a message follows a
state that is on disk. Each new fact is written into the node's own file, with an id for each
target, before anything is sent. A crash may repeat one message with the same id, and never loses
one. It runs beside the node's work: none waits for a message, or fails with it.

A message holds names, states and public prices: never a count of patients, a vote or a cell. Words
of others are one line, cut, and never part of a mail's head but for its subject.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import re
import secrets
import smtplib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from pate_fed.errors import CodedError, InvalidSettingError
from pate_fed.nodes.checks import (
    Check,
    Finding,
    exit_code,
    fail,
    lines_of_checks,
    made_check,
    ok,
    table_of_checks,
    warn,
)
from pate_fed.nodes.owner_files import read_secret, write_file
from pate_fed.nodes.terminal import minute, one_line, place_of
from pate_fed.regular_files import read_regular
from pate_fed.wording import plural

NOTICES_FILE: Final = "notices.json"
MAIL_SECRET: Final = "mail.secret"  # noqa: S105 - a file's name
WEBHOOK_SECRET: Final = "webhook.secret"  # noqa: S105 - a file's name
SIGNATURE: Final = "X-Pate-Fed-Signature"

MOST_TRIES: Final = 60
"""Tries of one message: more than two days, at the longest pause."""

MOST_WAITING: Final = 200
"""Messages that wait for a target; more push out the oldest."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 3600.0
_LOOK_S: Final = 5.0
_PATIENCE_S: Final = 10.0
LAST_S: Final = 2 * _PATIENCE_S
"""Longest wait for a message under way, at the end."""
_MOST_LETTERS, _MOST_SUBJECT = 300, 120
_MOST_ADDRESSES: Final = 20
_MOST_ALONE: Final = 3
"""New facts of one kind that get a message each; more share one."""
_MOST_TOGETHER: Final = 100
"""Subjects that one message lists."""
_MOST_FILE_BYTES: Final = 2**23
_ADDRESS: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,253}")
_URL_LETTERS: Final = re.compile(r"[!-~]{1,2000}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notify:
    """Where messages about this node are sent. All empty: nowhere.

    Attributes:
        mail: The mail server: "smtps://HOST:PORT", or "smtp://HOST:PORT", which must offer STARTTLS
            unless it is on this machine.
        mail_from: The sender's address.
        mail_to: The addresses of its readers.
        mail_user: The user's name at the server; empty to sign in by none. The password is in the
            file `mail.secret`.
        webhook: Address that gets each message as JSON, "https://..."; the key of its signature is
            in the file `webhook.secret`. Not shown: some addresses are secrets.
        page: Address at which readers open this node's pages, for a message's link.
    """

    mail: str = ""
    mail_from: str = ""
    mail_to: tuple[str, ...] = ()
    mail_user: str = ""
    webhook: str = field(default="", repr=False)
    page: str = ""

    def __post_init__(self) -> None:
        if self.mail:
            _mail_server(self.mail)
        if not bool(self.mail) == bool(self.mail_from) == bool(self.mail_to):
            raise InvalidSettingError("[notify] must have mail, mail_from and mail_to, or none")
        if self.mail_user and not self.mail:
            raise InvalidSettingError("mail_user must come with mail")
        for address in filter(None, (self.mail_from, *self.mail_to)):
            if not _ADDRESS.fullmatch(address):
                raise InvalidSettingError("an address must be like NAME@HOST", ascii(address))
        if len(self.mail_to) > _MOST_ADDRESSES:
            must = f"mail_to must have at most {_MOST_ADDRESSES} addresses"
            raise InvalidSettingError(must, len(self.mail_to))
        if self.webhook and not _is_safe(self.webhook):
            raise InvalidSettingError(
                "webhook must be https://HOST/..., or http:// on this machine, without a password"
            )
        if self.page and (_parts(self.page) is None or self.page.split(":")[0] not in _WEB):
            raise InvalidSettingError("page must be https://HOST/...")


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that people are told once, as long as it holds.

    Attributes:
        key: Same for the same fact.
        kind: For programs.
        words: Returns the subject and the lines of its message, made when it is new.
        is_old_news: Whether nobody is told if it held before messages were first sent.
    """

    key: str
    kind: str
    words: Callable[[], tuple[str, list[str]]]
    is_old_news: bool = False


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, before and while it is sent; `at` is Unix time in seconds."""

    id: str
    at: float
    kind: str
    subject: str
    lines: list[str]
    tries: int = 0

    @classmethod
    def of(cls, kind: str, subject: str, lines: Iterable[str], *, at: float) -> Outgoing:
        """Make one; whatever texts come, each is one line, and not long."""
        cut = [_cut(line, _MOST_LETTERS) for line in lines]
        return cls(secrets.token_hex(16), at, kind, _cut(subject, _MOST_SUBJECT), cut)


@dataclass(slots=True)
class _Queue:
    """What waits for a target, and how it fares; `failures` are those since its last success."""

    waiting: deque[Outgoing] = field(default_factory=deque)
    fault: str = ""
    failures: int = 0
    since: float = 0.0
    again_at: float = 0.0
    lost: int = 0


class Notifier:
    """Sends a message for each new fact of a node, again and again.

    Args:
        folder: The node's, for its queue and its secrets.
        node: What messages call it.
    """

    def __init__(
        self,
        settings: Notify,
        folder: Path,
        *,
        node: str,
        look: Callable[[], Iterable[Notice]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._targets = _targets(settings, folder, node=node)
        self._file, self._look, self._clock = folder / NOTICES_FILE, look, clock
        self._fault = ""

    def run(self, stopped: threading.Event) -> None:
        """Tell of new facts until told to stop; without a target forget all, and return at once."""
        if not self._targets:
            self._file.unlink(missing_ok=True)  # news of the time until the next one are old
        while self._targets and not stopped.wait(_LOOK_S):
            try:
                self.notify(is_over=stopped.is_set)
                self._fault = ""
            except Exception as error:  # the database may be away: nothing is lost by it
                if place_of(error) != self._fault and not stopped.is_set():
                    _log.error("nobody is told of news: %s", place_of(error))
                self._fault = place_of(error)

    def notify(self, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Note what is new, then send what is due."""
        known, queues = _read(self._file)
        before = known
        now = list(self._look())
        new = [one for one in now if known is None or one.key not in known]
        told = [one for one in new if known is not None or not one.is_old_news]
        for kind, subject, lines in _joined(told):
            for name in self._targets:
                message = Outgoing.of(kind, subject, lines, at=self._clock())
                queue = queues.setdefault(name, _Queue())
                queue.waiting.append(message)
                if len(queue.waiting) > MOST_WAITING:
                    queue.waiting.popleft()
                    queue.lost += 1
        known = {one.key for one in now}
        if known != before:
            self._write(known, queues)
        for name, deliver in self._targets.items():
            queue = queues.get(name, _Queue())
            while queue.waiting and queue.again_at <= self._clock() and not is_over():
                self._send(name, deliver, queue)
                self._write(known, queues)

    def _send(self, name: str, deliver: Deliver, queue: _Queue) -> None:
        """Send the next message; one that fails goes to the end, so that it holds up no other."""
        message = queue.waiting.popleft()
        try:
            deliver(message)
        except Exception as error:
            why, now = _why(error), self._clock()
            if why != queue.fault:
                _log.error("messages wait: %s fails: %s", name, why)
            queue.since = queue.since or now
            queue.fault, queue.failures = why, queue.failures + 1
            pause = min(_FIRST_PAUSE_S * 2 ** min(queue.failures - 1, 20), _LONGEST_PAUSE_S)
            queue.again_at = now + pause
            if message.tries + 1 < MOST_TRIES:
                queue.waiting.append(replace(message, tries=message.tries + 1))
            else:
                queue.lost += 1
                _log.error("a message is given up after %d tries by %s", MOST_TRIES, name)
        else:
            if queue.fault:
                _log.warning("messages are sent again by %s", name)
            queue.fault, queue.failures, queue.since, queue.again_at = "", 0, 0.0, 0.0

    def _write(self, known: set[str], queues: Mapping[str, _Queue]) -> None:
        named = {
            name: {**asdict(replace(one, waiting=deque())), "waiting": [*map(asdict, one.waiting)]}
            for name, one in queues.items()
            if name in self._targets
        }
        content = {"known": sorted(known), "queues": named}
        write_file(self._file, json.dumps(content, sort_keys=True).encode())


def try_targets(settings: Notify, folder: Path, *, node: str) -> Iterator[Check]:
    """Send a message to each target now, and say what happened."""
    for name, deliver in _targets(settings, folder, node=node).items():
        message = Outgoing.of(
            "test", "a test", ["If you read this, messages arrive."], at=time.time()
        )

        def sent(deliver: Deliver = deliver, message: Outgoing = message) -> Finding:
            try:
                deliver(message)
            except Exception as error:
                return fail(f"Not sent: {_why(error)}.", "See the page on notifications.")
            return ok("A test message was taken.")

        yield made_check(name, sent)


def show_test(settings: Notify, folder: Path, *, node: str, file: str) -> None:
    """Test each target of a settings `file`, at a command line, and show what happened."""
    import typer  # noqa: PLC0415 - a node loads none

    from pate_fed.nodes.command_line import show  # noqa: PLC0415 - the same

    found = list(try_targets(settings, folder, node=node))
    if not found:
        raise InvalidSettingError(f"[notify] in {file} must name mail or webhook", "neither")
    show(table_of_checks(found), lines_of_checks(found))
    raise typer.Exit(exit_code(found))


def check_notices(settings: Notify, folder: Path) -> Finding:
    """Say how many messages wait, and why."""
    names = list(_targets(settings, folder, node=""))
    if not names:
        return ok("Nobody is told of news: [notify] is empty.")
    _, queues = _read(folder / NOTICES_FILE)
    troubles = []
    for name in names:
        queue = queues.get(name, _Queue())
        if queue.fault:
            waiting = plural(len(queue.waiting), "message")
            troubles.append(f"{waiting} for {name} since {minute(queue.since)}: {queue.fault}")
        if queue.lost:
            troubles.append(f"{plural(queue.lost, 'message')} for {name} given up")
    if not troubles:
        return ok(f"News are sent by {' and '.join(names)}.")
    return warn(f"News wait: {'; '.join(troubles)}.", "`notify test` tries at once.")


def _joined(new: Iterable[Notice]) -> Iterator[tuple[str, str, list[str]]]:
    """Return the messages about new facts: kind, subject, lines; one for many of a kind."""
    by_kind: dict[str, list[Notice]] = {}
    for one in new:
        by_kind.setdefault(one.kind, []).append(one)
    for kind, some in by_kind.items():
        words = [one.words() for one in some]
        if len(some) <= _MOST_ALONE:
            yield from ((kind, *one) for one in words)
            continue
        lines = [subject for subject, _ in words[:_MOST_TOGETHER]]
        if len(some) > _MOST_TOGETHER:
            lines.append(f"and {len(some) - _MOST_TOGETHER} more")
        yield kind, f"{words[0][0]}, and {len(some) - 1} more", lines


# Targets ------------------------------------------------------------------------------------------

Deliver = Callable[[Outgoing], None]
"""Sends one message, or raises whatever is in the way."""

_WEB: Final = ("https", "http")


def _targets(settings: Notify, folder: Path, *, node: str) -> dict[str, Deliver]:
    found: dict[str, Deliver] = {}
    if settings.mail:
        found["mail"] = lambda message: _mail(settings, folder, message, node=node)
    if settings.webhook:
        found["webhook"] = lambda message: _post(settings, folder, message, node=node)
    return found


def _mail(settings: Notify, folder: Path, message: Outgoing, *, node: str) -> None:
    mail = EmailMessage()
    mail["Subject"] = _cut(f"{node}: {message.subject}", _MOST_SUBJECT)
    mail["From"], mail["To"] = settings.mail_from, ", ".join(settings.mail_to)
    mail["Date"] = formatdate(message.at)
    mail["Message-ID"] = f"<{message.id}@{settings.mail_from.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    link = [f"\n{settings.page}"] if settings.page else []
    mail.set_content("\n".join([*message.lines, *link]) + "\n")
    parts = _mail_server(settings.mail)
    host, port = parts.hostname or "", parts.port or 0
    context = ssl.create_default_context()
    if parts.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_PATIENCE_S, context=context)
    else:
        server = smtplib.SMTP(host, port, timeout=_PATIENCE_S)
    with server:
        if parts.scheme == "smtp" and not _is_here(host):
            server.starttls(context=context)  # raises where it is not offered
        if settings.mail_user:
            password = _secret(folder, MAIL_SECRET, "ask for another password").decode()
            server.login(settings.mail_user, password)
        if refused := server.send_message(mail):
            _log.warning("the mail server refuses %s", plural(len(refused), "address", "addresses"))


def _post(settings: Notify, folder: Path, message: Outgoing, *, node: str) -> None:
    import httpx  # noqa: PLC0415 - slow to load, and few use it

    key = _secret(folder, WEBHOOK_SECRET, "make another, here and at the receiver")
    content = asdict(message)
    del content["tries"]
    body = json.dumps({**content, "node": node, "page": settings.page}, sort_keys=True).encode()
    at = str(int(time.time()))
    signed = hmac.new(key, at.encode() + b"." + body, hashlib.sha256).hexdigest()
    headers = {"Content-Type": "application/json", SIGNATURE: f"t={at},v1={signed}"}
    with httpx.stream(
        "POST",
        settings.webhook,
        content=body,
        headers=headers,
        timeout=_PATIENCE_S,
        follow_redirects=False,
    ) as answer:
        if not answer.is_success:
            must = "the receiver must answer 2xx, and redirects are not followed"
            raise InvalidSettingError(must, answer.status_code)


def _secret(folder: Path, name: str, anew: str) -> bytes:
    found = read_secret(folder / name, name, anew=anew, fault=InvalidSettingError).strip()
    if not found:
        raise InvalidSettingError(f"{name} must hold a secret", "an empty file")
    return found


def _mail_server(text: str) -> SplitResult:
    parts = _parts(text)
    if parts is None or parts.scheme not in ("smtps", "smtp") or not parts.port or parts.path:
        raise InvalidSettingError(
            "mail must be smtps://HOST:PORT or smtp://HOST:PORT, without a password"
        )
    return parts


def _is_safe(url: str) -> bool:
    parts = _parts(url)
    return parts is not None and (
        parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname or ""))
    )


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a URL without a user, a password or a fragment; None for any other."""
    with suppress(ValueError):
        parts = urlsplit(url)
        _ = parts.port  # it may be no number
        if _URL_LETTERS.fullmatch(url) and parts.hostname and "@" not in parts.netloc:
            return None if parts.fragment else parts
    return None


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _why(error: Exception) -> str:
    """Name a fault, without the other end's words: they may quote anything."""
    if isinstance(error, CodedError):
        return one_line(f"{error.code}: {error.must}; got {error.got}" if error.got else error.must)
    kind = type(error).__name__
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{kind} {error.smtp_code}"
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    return kind


def _cut(text: str, most: int) -> str:
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _read(path: Path) -> tuple[set[str] | None, dict[str, _Queue]]:
    """Return the known facts, None before the first look, and each target's queue."""
    try:
        kept = json.loads(read_regular(path, most_bytes=_MOST_FILE_BYTES))
        queues = {str(name): _queue_of(one) for name, one in kept["queues"].items()}
        return {str(key) for key in kept["known"]}, queues
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None, {}


def _queue_of(kept: dict[str, Any]) -> _Queue:
    return _Queue(**{**kept, "waiting": deque(Outgoing(**one) for one in kept["waiting"])})

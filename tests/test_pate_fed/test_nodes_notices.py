"""Messages to people: sent after the fact is on disk, once, safely, and never in the way."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import notices
from pate_fed.nodes.notices import (
    MAIL_SECRET,
    MOST_TRIES,
    MOST_WAITING,
    SIGNATURE,
    WEBHOOK_SECRET,
    Notice,
    Notifier,
    Notify,
    check_notices,
    try_targets,
)
from tests.support.receivers import Hooks, Mails, mail_server, webhook

SECRET = "a-secret-that-no-log-shows"
HOSTILE = (
    "x\r\nBcc: mallory@example.org\r\n\r\n.\r\nMAIL FROM:<m@x>\u2028\u202e\0 é" + "long " * 200
)


@pytest.fixture
def mails() -> Iterator[Mails]:
    with mail_server(Mails()) as server:
        yield server


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with webhook(Hooks()) as server:
        yield server


@pytest.fixture
def ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


def tls_of(ca: trustme.CA, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host).configure_cert(context)
    return context


def by_mail(port: int, *, scheme: str = "smtp", user: str = "") -> Notify:
    return Notify(
        mail=f"{scheme}://127.0.0.1:{port}",
        mail_from="node@here.example",
        mail_to=("owner@here.example",),
        mail_user=user,
        page="https://page.example/",
    )


def by_hook(port: int, scheme: str = "http") -> Notify:
    return Notify(webhook=f"{scheme}://127.0.0.1:{port}/hook")


def keep(folder: Path, name: str, content: str = SECRET, mode: int = 0o600) -> None:
    (folder / name).write_text(content)
    (folder / name).chmod(mode)


def a_notice(key: str, *lines: str, is_old_news: bool = False) -> Notice:
    return Notice(key, "run waits", lambda: (key, list(lines)), is_old_news)


class Node:
    """A node's notifier, with its facts and its clock."""

    def __init__(self, settings: Notify, folder: Path) -> None:
        self.facts: list[Notice] = []
        self.now = 1_000_000.0
        self.settings, self.folder = settings, folder
        self.restart()

    def restart(self) -> None:
        self.notifier = Notifier(
            self.settings,
            self.folder,
            node="East",
            look=lambda: self.facts,
            clock=lambda: self.now,
        )

    def look(self, *facts: Notice) -> None:
        self.facts = list(facts)
        self.notifier.notify()

    @property
    def said(self) -> str:
        return check_notices(self.settings, self.folder).said


def test_a_mail_says_the_fact_once(mails: Mails, tmp_path: Path) -> None:
    node = Node(by_mail(mails.port), tmp_path)
    for _ in range(3):
        node.look(a_notice("run brain7 waits", "epsilon 2.1"))
        node.restart()
    [mail] = mails.mails
    assert mail["Subject"] == "East: run brain7 waits"
    assert (mail["From"], mail["To"]) == ("node@here.example", "owner@here.example")
    assert mail.get_content().split() == ["epsilon", "2.1", "https://page.example/"]
    assert check_notices(node.settings, tmp_path).state == "ok"


def test_many_facts_of_a_kind_share_a_message_and_three_do_not(
    mails: Mails, tmp_path: Path
) -> None:
    node = Node(by_mail(mails.port), tmp_path)
    node.look()
    three = [a_notice(f"few {number}") for number in range(3)]
    node.look(*three)
    assert len(mails.mails) == 3
    node.look(*three, *(a_notice(f"many {number}") for number in range(130)))
    assert len(mails.mails) == 4
    assert len(str(mails.mails[3].get_payload()).splitlines()) < 110


def test_words_of_others_make_neither_a_head_nor_a_line_nor_a_command(
    mails: Mails, tmp_path: Path
) -> None:
    plain, hostile = Node(by_mail(mails.port), tmp_path), a_notice(HOSTILE, HOSTILE, "last")
    plain.look(hostile)
    [mail] = mails.mails
    names = {"Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted"}
    assert {*mail.keys()} == names | {"Content-Type", "Content-Transfer-Encoding", "MIME-Version"}
    assert len(mail["Subject"]) <= 120
    lines = mail.get_content().splitlines()
    assert len(lines) == 4
    assert len(lines[0]) == 300
    assert all(line.isprintable() for line in lines)
    assert sum(line.upper().startswith("MAIL") for line in mails.commands) == 1
    assert sum(line.upper().startswith("RCPT") for line in mails.commands) == 1


def test_tls_is_checked_before_a_password_is_sent(
    ca: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(tmp_path, MAIL_SECRET)
    with mail_server(Mails(password=SECRET), tls=tls_of(ca)) as good:
        Node(by_mail(good.port, scheme="smtps", user="east"), tmp_path).look(a_notice("one"))
        assert len(good.mails) == 1
    for stranger in (tls_of(trustme.CA()), tls_of(ca, "other.example")):
        with mail_server(Mails(password=SECRET), tls=stranger) as bad:
            node = Node(by_mail(bad.port, scheme="smtps", user="east"), tmp_path)
            node.look(a_notice("two"))
            assert not bad.commands
    (tmp_path / "notices.json").unlink()  # with its pause
    with mail_server(Mails(password="another"), tls=tls_of(ca)) as wrong:
        node = Node(by_mail(wrong.port, scheme="smtps", user="east"), tmp_path)
        node.look(a_notice("three"))
        assert "535" in caplog.text
    kept = (tmp_path / "notices.json").read_text()
    assert SECRET not in caplog.text + kept + node.said


def test_a_server_elsewhere_that_offers_no_tls_gets_nothing(
    mails: Mails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_is_here", lambda _: False)
    keep(tmp_path, MAIL_SECRET)
    node = Node(by_mail(mails.port, user="east"), tmp_path)
    node.look(a_notice("one"))
    assert {line.split()[0].upper() for line in mails.commands} <= {"EHLO", "QUIT", "RSET"}
    assert not mails.mails
    assert check_notices(node.settings, tmp_path).state == "warn"


def test_a_webhook_gets_json_that_its_secret_signs(ca: trustme.CA, tmp_path: Path) -> None:
    keep(tmp_path, WEBHOOK_SECRET, f"{SECRET}\n")
    with webhook(Hooks(), tls=tls_of(ca)) as hooks:
        Node(by_hook(hooks.port, "https"), tmp_path).look(a_notice("one", HOSTILE))
        [(path, head, body)] = hooks.seen
    sent = json.loads(body)
    at, signed = (one.partition("=")[2] for one in head[SIGNATURE].split(","))
    expected = hmac.digest(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hex()
    assert (path, signed) == ("/hook", expected)
    assert sent.keys() == {"id", "at", "kind", "subject", "lines", "node", "page"}
    assert (sent["kind"], sent["node"], len(sent["id"])) == ("run waits", "East", 32)
    assert SECRET.encode() not in body


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 500])
def test_redirects_and_other_answers_are_failures(
    status: int, hooks: Hooks, tmp_path: Path
) -> None:
    keep(tmp_path, WEBHOOK_SECRET)
    with webhook(Hooks()) as elsewhere:
        hooks.status, hooks.location = status, f"http://127.0.0.1:{elsewhere.port}/"
        node = Node(by_hook(hooks.port), tmp_path)
        node.look(a_notice("one"))
        assert not elsewhere.seen
    assert str(status) in node.said


@pytest.mark.parametrize(("content", "mode"), [(SECRET, 0o644), ("", 0o600), (None, 0)])
def test_a_secret_that_is_none_sends_nothing(
    content: str | None, mode: int, hooks: Hooks, tmp_path: Path
) -> None:
    if content is not None:
        keep(tmp_path, WEBHOOK_SECRET, content, mode)
    node = Node(by_hook(hooks.port), tmp_path)
    node.look(a_notice("one"))
    assert not hooks.seen
    assert WEBHOOK_SECRET in node.said
    assert SECRET not in node.said


def test_a_failing_server_is_asked_more_and_more_rarely_and_not_for_ever(
    mails: Mails, tmp_path: Path
) -> None:
    mails.refuses = "*"
    node = Node(by_mail(mails.port), tmp_path)
    tries, begun = [], node.now
    while node.now < begun + 30 * 86_400:
        before = len(mails.commands)
        node.look(a_notice("one"))
        if len(mails.commands) > before:
            tries.append(node.now)
        node.restart()  # a pause outlives a restart
        node.now = max(node.now + 30, json_of(tmp_path)["queues"]["mail"]["again_at"])
        if not json_of(tmp_path)["queues"]["mail"]["waiting"]:
            break
    pauses = [after - one for one, after in itertools.pairwise(tries)]
    assert len(tries) == MOST_TRIES
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 3600
    assert "given up" in node.said


def json_of(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = json.loads(
        (folder / "notices.json").read_text()
    )
    return found


def test_a_message_that_is_refused_holds_up_no_other(mails: Mails, tmp_path: Path) -> None:
    mails.refuses = "bad"
    node = Node(by_mail(mails.port), tmp_path)
    node.look(a_notice("bad"), a_notice("good"), a_notice("other"))
    assert "554" in node.said
    node.now += 31
    node.look(*node.facts)
    assert [mail["Subject"] for mail in mails.mails] == ["East: good", "East: other"]


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    node = Node(by_mail(1), tmp_path)
    facts = [a_notice(f"fact {number}") for number in range(MOST_WAITING + 5)]
    node.look(*(replace(one, kind=one.key) for one in facts))
    assert len(json_of(tmp_path)["queues"]["mail"]["waiting"]) == MOST_WAITING
    assert "5 messages for mail given up" in node.said


def test_old_news_are_told_to_nobody_and_a_fact_that_comes_again_is(
    mails: Mails, tmp_path: Path
) -> None:
    old, away = a_notice("old", is_old_news=True), a_notice("away")
    node = Node(by_mail(mails.port), tmp_path)
    for facts in ([old, away], [old], [old, away], [old, away], [a_notice("new"), old]):
        node.look(*facts)
    told = [str(mail["Subject"]) for mail in mails.mails]
    assert told == ["East: away", "East: away", "East: new"]


def test_without_targets_nothing_is_kept(tmp_path: Path) -> None:
    node = Node(by_mail(1), tmp_path)
    node.look(a_notice("one"))
    node.settings = Notify()
    node.restart()
    node.notifier.run(threading.Event())
    assert not list(tmp_path.iterdir())


KILLED = """
import os, smtplib, sys
from pathlib import Path
from pate_fed.nodes.notices import Notice, Notifier, Notify

folder, port, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
send = smtplib.SMTP.send_message

def killed(server, mail):
    if when == "after":
        send(server, mail)
    os.kill(os.getpid(), 9)

smtplib.SMTP.send_message = killed
settings = Notify(mail=f"smtp://127.0.0.1:{port}", mail_from="a@b", mail_to=("c@d",))
facts = [Notice("one", "run waits", lambda: ("one", []))]
Notifier(settings, folder, node="East", look=lambda: facts).notify()
"""


@pytest.mark.parametrize(("when", "times"), [("before", 1), ("after", 2)])
def test_a_kill_loses_no_message_and_repeats_one_at_most(
    when: str, times: int, mails: Mails, tmp_path: Path
) -> None:
    call = [sys.executable, "-c", KILLED, str(tmp_path), str(mails.port), when]
    assert subprocess.run(call, check=False).returncode == -signal.SIGKILL
    settings = Notify(mail=f"smtp://127.0.0.1:{mails.port}", mail_from="a@b", mail_to=("c@d",))
    for _ in range(3):  # the fact itself may be gone by now: its message is not
        Node(settings, tmp_path).look()
    assert len(mails.mails) == times
    assert len({str(mail["Message-ID"]) for mail in mails.mails}) == 1


def test_a_source_that_fails_ends_no_thread_and_shows_no_value(
    mails: Mails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "_LOOK_S", 0.01)
    stopped, looks = threading.Event(), iter(range(1000))

    def look() -> list[Notice]:
        if next(looks) < 3:
            raise OSError(SECRET)
        return [a_notice("one")]

    notifier = Notifier(by_mail(mails.port), tmp_path, node="East", look=look)
    thread = threading.Thread(target=notifier.run, args=(stopped,))
    thread.start()
    assert mails.came.wait(30)
    stopped.set()
    thread.join()
    assert caplog.text.count("OSError") == 1
    assert SECRET not in caplog.text


def test_a_broken_queue_is_a_first_look(mails: Mails, tmp_path: Path) -> None:
    (tmp_path / "notices.json").write_text('{"known": 1, "queues": [')
    Node(by_mail(mails.port), tmp_path).look(a_notice("one"), a_notice("two", is_old_news=True))
    assert [mail["Subject"] for mail in mails.mails] == ["East: one"]


def test_a_test_message_says_what_happened(mails: Mails, tmp_path: Path) -> None:
    settings = Notify(
        mail=f"smtp://127.0.0.1:{mails.port}",
        mail_from="a@b",
        mail_to=("c@d",),
        webhook="https://127.0.0.1:1/token-in-the-path",
    )
    keep(tmp_path, WEBHOOK_SECRET)
    good, bad = try_targets(settings, tmp_path, node="East")
    assert (good.name, good.state, bad.name, bad.state) == ("mail", "ok", "webhook", "fail")
    assert len(mails.mails) == 1
    assert "token" not in bad.said
    assert [one.name for one in tmp_path.iterdir()] == [WEBHOOK_SECRET]


MAIL = {"mail": "smtps://mail.example:465", "mail_from": "a@b.example", "mail_to": ("c@d.example",)}


@pytest.mark.parametrize(
    "settings",
    [
        {**MAIL, "mail": "mail.example:465"},
        {**MAIL, "mail": "smtps://mail.example"},
        {**MAIL, "mail": "smtps://user:password@mail.example:465"},
        {**MAIL, "mail": "http://mail.example:465"},
        {**MAIL, "mail_from": ""},
        {**MAIL, "mail_to": ()},
        {**MAIL, "mail": ""},
        {**MAIL, "mail_from": "a@b\r\nBcc: m@x"},
        {**MAIL, "mail_to": ("c@d, m@x",)},
        {**MAIL, "mail_to": ("c@d.example",) * 21},
        {"mail_user": "east"},
        {"webhook": "http://hooks.example/x"},
        {"webhook": "https://user:password@hooks.example/x"},
        {"webhook": "https:///x"},
        {"webhook": "https://hooks.example/x\r\nX: y"},
        {"webhook": "file:///etc/passwd"},
        {"page": "javascript:alert(1)"},
        {"page": "https://page.example/\nBuy"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_safe_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSettingError) as error:
        Notify(**settings)  # type: ignore[arg-type]
    assert "user:password" not in str(error.value)


def test_settings_show_no_address_of_a_webhook() -> None:
    assert "token" not in repr(Notify(webhook="https://hooks.example/token"))

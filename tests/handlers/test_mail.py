"""handlers.mail against a small SMTP server that answers as each test says."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from handlers import mail
from supervisor import Fail, Retry
from supervisor.worker.handler import Handler, HandlerError

PAYLOAD = {"to": "b@example.org", "subject": "Grüße", "text": "Hello,\n.\nthe end"}


class Conversation(socketserver.StreamRequestHandler):
    """One SMTP session. `server.answers` maps the beginning of a command to a reply of the test's choice."""

    timeout = 10
    server: Server

    def handle(self) -> None:
        self.reply("220 ready", "CONNECT")
        for line in self.rfile:
            command = line.decode().strip().upper()
            if command == "DATA":
                if self.reply("354 go on", command).startswith("354"):
                    self.server.mails.append(self.mail())
                    self.reply("250 taken", "TAKE")
            elif command == "QUIT":
                self.reply("221 bye", command)
                return
            else:
                self.reply("250 fine", command)

    def mail(self) -> str:
        lines: list[bytes] = []
        while lines[-1:] != [b".\r\n"]:
            lines.append(self.rfile.readline())
            if not lines[-1]:
                raise ConnectionError
        return b"".join(lines).decode()

    def reply(self, text: str, command: str) -> str:
        for start, answer in self.server.answers.items():
            if command.startswith(start):
                text = answer
        if text == "HANG UP":
            self.connection.close()
            raise ConnectionError
        self.wfile.write(f"{text}\r\n".encode())
        return text


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.answers: dict[str, str] = {}
        self.mails: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client or a test that hangs up is part of the play."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def send(server: Server, context: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    def call(payload: dict[str, Any] = PAYLOAD, **options: Any) -> dict[str, Any]:
        return mail.send(payload, context(**{"host": "127.0.0.1", "port": server.port, "timeout": 5, **options}))

    return call


def test_a_mail_is_handed_over(server: Server, send: Callable[..., dict[str, Any]]) -> None:
    result = send(sender="a@example.org")
    assert (result["accepted"], result["refused"]) == (["b@example.org"], {})
    (message,) = server.mails
    assert "From: a@example.org\r\nTo: b@example.org\r\nSubject: =?utf-8?" in message
    assert f"Message-ID: {result['message_id']}" in message
    assert "Hello,\r\n..\r\nthe end" in message, "a dot on a line of its own must not end the mail"


def test_a_mail_of_an_alert_tells_the_facts(server: Server, send: Callable[..., dict[str, Any]]) -> None:
    facts = {"summary": "2 jobs have failed", "subject": "tag", "error": "ValueError:\r\nBcc: x@example.org", "jobs": 2}
    send({"to": "b@example.org", "alert": facts})
    send({"to": "b@example.org", "alert": facts, "subject": "Mine", "text": "Look:"})
    first, second = server.mails
    assert "Subject: 2 jobs have failed" in first
    assert "subject: tag\r\nerror: ValueError: Bcc: x@example.org\r\njobs: 2" in first
    assert "Subject: Mine" in second
    assert "Look:\r\n\r\nsummary: 2 jobs" in second


def test_the_same_job_has_the_same_message_id(send: Callable[..., dict[str, Any]]) -> None:
    assert send()["message_id"] == send()["message_id"]
    assert send()["message_id"] != send({**PAYLOAD, "text": "another"})["message_id"]


@pytest.mark.parametrize("step", ["CONNECT", "MAIL", "RCPT", "DATA", "TAKE"])
@pytest.mark.parametrize(
    ("answer", "verdict"), [("554 no", Fail), ("550 no", Fail), ("451 not now", Retry), ("421 busy", Retry)]
)
def test_the_servers_code_decides_between_fail_and_retry(
    server: Server, send: Callable[..., dict[str, Any]], step: str, answer: str, verdict: type[Exception]
) -> None:
    server.answers[step] = answer
    with pytest.raises(verdict, match=answer[:3]):
        send()


@pytest.mark.parametrize("step", ["CONNECT", "EHLO", "RCPT", "TAKE"])
def test_a_connection_that_ends_is_tried_again(server: Server, send: Callable[..., dict[str, Any]], step: str) -> None:
    server.answers[step] = "HANG UP"
    with pytest.raises(Retry):
        send()


def test_a_server_that_is_away_is_tried_again(send: Callable[..., dict[str, Any]]) -> None:
    with Server() as away:
        port = away.port
    with pytest.raises(Retry, match=f"127.0.0.1:{port}: "):
        send(port=port)


def test_a_fault_after_the_mail_was_taken_does_not_send_it_again(
    server: Server, send: Callable[..., dict[str, Any]]
) -> None:
    server.answers["QUIT"] = "HANG UP"
    assert send()["accepted"] == ["b@example.org"]
    assert len(server.mails) == 1


def test_one_refused_recipient_of_two_is_named_in_the_result(
    server: Server, send: Callable[..., dict[str, Any]]
) -> None:
    server.answers["RCPT TO:<B@"] = "550 unknown"
    result = send({**PAYLOAD, "to": ["b@example.org", "c@example.org"]})
    assert (result["accepted"], result["refused"]) == (["c@example.org"], {"b@example.org": "550 unknown"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"to": None}, "no recipient"),
        ({"to": []}, "no recipient"),
        ({"to": "nobody"}, "not a mail address"),
        ({"to": "a@b.c, d@e.f"}, "not a mail address"),
        ({"to": ["a@b.c", 7]}, "not a mail address"),
        ({"to": "a@b.c\nBcc: d@e.f"}, "not a mail address"),
        ({"subject": "x\nBcc: d@e.f"}, "the payload cannot be sent as a mail"),
        ({"text": 7}, "text must be a string"),
    ],
)
def test_a_bad_payload_fails_for_good(
    server: Server, send: Callable[..., dict[str, Any]], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(Fail, match=message):
        send({**PAYLOAD, **change})
    assert server.mails == []


def test_a_missing_password_or_feature_fails_for_good(
    send: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAIL_PASSWORD", raising=False)
    with pytest.raises(Fail, match="no environment variable 'MAIL_PASSWORD'"):
        send(username="a", password_env="MAIL_PASSWORD")
    monkeypatch.setenv("MAIL_PASSWORD", "secret")
    with pytest.raises(Fail, match="not supported"):
        send(username="a", password_env="MAIL_PASSWORD", allow_plain_login=True)
    with pytest.raises(Fail, match="not supported"):
        send(security="starttls")
    with pytest.raises(Fail, match=r"options\.security"):
        send(security="starttsl")


def test_options_are_checked_before_the_first_job(context: Callable[..., Any]) -> None:
    handler = Handler(mail.send, "handlers.mail:send")
    faults = {
        "hots": ("x", "options.hots: there is no such option; did you mean host?"),
        "port": ("25", "options.port: must be a whole number, not '25'"),
        "security": ("ssl", "options.security: must be 'none', 'starttls' or 'tls', not 'ssl'"),
        "timeout": (0, "options.timeout: must be greater than 0.0, not 0"),
    }
    for key, (value, sentence) in faults.items():
        with pytest.raises(HandlerError) as caught:
            handler.setup(context(**{key: value}))
        assert str(caught.value) == sentence
    handler.setup(context(host="mail.example.org"))

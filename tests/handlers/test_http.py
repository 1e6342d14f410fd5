"""handlers.http against servers on loopback: what is sent, what is retried, and what it does not reach."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from handlers import connections
from handlers import http as webhook
from handlers.options import HttpOptions
from supervisor import Fail, Queue, Retry, task
from supervisor.testing import run_due
from supervisor.worker.handler import Handler, HandlerError
from tests.stopwatch import Stopwatch


@dataclass
class Seen:
    method: str
    path: str
    headers: Message
    body: bytes


class Answers(http.server.BaseHTTPRequestHandler):
    timeout = 10
    server: Receiver

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(Seen(self.command, self.path, self.headers, body))
        if self.path == "/hang":
            self.server.hold.wait(10)
            return
        if self.path.startswith("/to/"):
            self.send_response(307)
            self.send_header("Location", self.path[4:])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status = int(self.path.rpartition("/")[2]) if self.path.startswith("/status/") else 200
        self.send_response(status)
        if self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        said = b"x" * 100_000 if self.path == "/long" else b"thanks"
        self.send_header("Content-Length", str(0 if status == 204 else len(said)))
        self.end_headers()
        if status != 204:
            self.wfile.write(said)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None: ...


class Receiver(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.seen: list[Seen] = []
        self.retry_after = ""
        self.hold = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the play."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.hold.set()
        server.shutdown()
        thread.join()


Send = Callable[..., dict[str, Any]]


@pytest.fixture
def send(receiver: Receiver, context: Callable[..., Any]) -> Send:
    """Send to a path of the receiver, or to a `url`; the keywords are options."""

    def call(payload: dict[str, Any] | None = None, path: str = "/hook", **options: Any) -> dict[str, Any]:
        ctx = context(**{"allow_private_hosts": True, "timeout": 5.0, **options})
        ctx.idempotency_key = "epoch-1"
        at = {} if options.get("url") else {"url": f"{receiver.url}{path}"}
        return webhook.send({**at, **(payload or {})}, ctx)

    return call


def test_the_body_is_sent_as_json_with_a_key_that_is_the_same_for_every_attempt(receiver: Receiver, send: Send) -> None:
    assert send({"body": {"n": "ä"}}) == {"status": 200, "body": "thanks"}
    [seen] = receiver.seen
    assert (seen.method, seen.path, json.loads(seen.body)) == ("POST", "/hook", {"n": "ä"})
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["Idempotency-Key"] == "epoch-1"


def test_the_signature_covers_method_url_time_and_body(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    send({"body": [1]}, secret_env="HOOK_SECRET")
    [seen] = receiver.seen
    stamp = seen.headers["X-Timestamp"]
    assert abs(time.time() - int(stamp)) < 60
    text = f"POST\n{receiver.url}/hook\n{stamp}\n".encode() + seen.body
    assert seen.headers["X-Signature"] == "sha256=" + hmac.new(b"s3cret", text, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("prefix", ["whsec_", ""])
def test_a_standard_webhook_is_signed_as_its_specification_says(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setenv("HOOK_SECRET", prefix + base64.b64encode(b"s3cret").decode())
    send({"body": {"n": 1}}, secret_env="HOOK_SECRET", signature="standard")
    [seen] = receiver.seen
    stamp = seen.headers["Webhook-Timestamp"]
    assert abs(time.time() - int(stamp)) < 60
    assert seen.headers["Webhook-Id"] == "epoch-1"
    digest = hmac.new(b"s3cret", f"epoch-1.{stamp}.".encode() + seen.body, hashlib.sha256).digest()
    assert seen.headers["Webhook-Signature"] == "v1," + base64.b64encode(digest).decode()
    assert seen.headers["X-Signature"] is None


def test_the_end_of_a_job_is_posted_as_a_standard_webhook(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", base64.b64encode(b"s3cret").decode())
    options = {"url": f"{receiver.url}/hook", "secret_env": "HOOK_SECRET", "signature": "standard"}

    @task("tests.export", on_done="webhook")
    def export() -> dict[str, str]:
        return {"file": "ä.zip"}

    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    export.options(queue=queue).enqueue()
    handlers = {"tests.export": export, "webhook": "handlers.http:post"}
    jobs = run_due(queue, handlers, options={**options, "allow_private_hosts": True})
    assert jobs[1].result == {"status": 200, "body": "thanks"}
    [seen] = receiver.seen
    end = {"job": 1, "type": "tests.export", "status": "done", "error": None, "result": {"file": "ä.zip"}}
    assert (seen.method, json.loads(seen.body)) == ("POST", end)
    text = f"{seen.headers['Webhook-Id']}.{seen.headers['Webhook-Timestamp']}.".encode() + seen.body
    signature = base64.b64encode(hmac.new(b"s3cret", text, hashlib.sha256).digest()).decode()
    assert seen.headers["Webhook-Signature"] == f"v1,{signature}"


def test_the_reference_signature_of_standard_webhooks_is_ours() -> None:
    """The example of the libraries of standardwebhooks.com, in each of their tests."""
    headers = webhook._standard(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "HOOK_SECRET",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "1614265330",
        b'{"test": 2432232314}',
    )
    assert headers["Webhook-Signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_a_usable_secret_nothing_is_sent(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "not base64!")
    with pytest.raises(Fail, match="HOOK_SECRET is not a secret of Standard Webhooks, which is base64"):
        send({}, secret_env="HOOK_SECRET", signature="standard")
    with pytest.raises(Fail, match="the environment variable NO_SUCH_SECRET is not set"):
        send({}, secret_env="NO_SUCH_SECRET")
    assert receiver.seen == []


def test_what_the_body_is_made_of(receiver: Receiver, send: Send) -> None:
    send({"text": "a=1&b=ä", "headers": {"Content-Type": "application/x-www-form-urlencoded"}})
    send({"text": "x"})
    send({"method": "GET"})
    send({"alert": {"when": "given_up"}})
    form, plain, get, alert = receiver.seen
    assert (get.method, get.body, get.headers["Content-Type"]) == ("GET", b"", None)
    assert json.loads(alert.body) == {"when": "given_up"}
    assert (form.body, form.headers["Content-Type"]) == ("a=1&b=ä".encode(), "application/x-www-form-urlencoded")
    assert plain.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [(Fail, (400, 401, 404, 410, 422)), (Retry, (408, 409, 425, 429, 500, 502, 503, 504, 507))],
)
def test_a_refusal_is_permanent_and_a_trouble_of_the_receiver_is_retried(
    send: Send, outcome: type[Exception], statuses: tuple[int, ...]
) -> None:
    for status in statuses:
        with pytest.raises(outcome, match=rf"127\.0\.0\.1 answered {status}") as caught:
            send(path=f"/status/{status}")
        assert getattr(caught.value, "after", None) is None


@pytest.mark.parametrize(
    ("wish", "least", "most"),
    [
        ("120", 120, 120),
        ("in an hour", 3000, 3600),
        ("an hour ago", 0, 0),
        ("999999999", 7 * 86_400, 7 * 86_400),
        ("soon", None, None),
        ("-5", None, None),
        ("Wed, 99 Foo 2099", None, None),
    ],
)
def test_the_receiver_may_say_when_to_come_again(
    receiver: Receiver, send: Send, wish: str, least: float | None, most: float | None
) -> None:
    dates = {"in an hour": 3600, "an hour ago": -3600}
    receiver.retry_after = formatdate(time.time() + dates[wish], usegmt=True) if wish in dates else wish
    with pytest.raises(Retry) as caught:
        send(path="/status/429")
    if least is None or most is None:
        assert caught.value.after is None
    else:
        assert caught.value.after is not None
        assert least <= caught.value.after <= most


def test_no_connection_and_no_answer_in_time_are_retried(send: Send) -> None:
    watch = Stopwatch()
    for of_payload, of_pool in (({}, 0.2), ({"timeout": 0.2}, 5.0)):  # a payload may ask for less time
        with pytest.raises(Retry, match=r"no answer from 127\.0\.0\.1"):
            send(of_payload, path="/hang", timeout=of_pool)
    assert watch.seconds() < 4
    with pytest.raises(Retry, match=r"no answer from 127\.0\.0\.1"):
        send(url="http://127.0.0.1:1/")


def test_only_the_start_of_a_long_answer_is_kept(send: Send) -> None:
    assert send(path="/long")["body"] == "x" * 1000
    assert send(path="/status/204") == {"status": 204, "body": ""}


# What it must not reach


def test_only_the_allowed_hosts_are_reached(receiver: Receiver, send: Send) -> None:
    with pytest.raises(Fail, match=r"127\.0\.0\.1 is not one of the allowed_hosts"):
        send(allowed_hosts=["example.org"])
    place = f"http://localhost:{receiver.server_port}/there"
    with pytest.raises(Fail, match="localhost is not one of the allowed_hosts"):
        send({"method": "GET"}, path=f"/to/{place}", max_redirects=1, allowed_hosts=["127.0.0.1"])
    assert [seen.path for seen in receiver.seen] == [f"/to/{place}"]
    assert send(allowed_hosts=["example.org", "127.0.0.1"])["status"] == 200


@pytest.mark.parametrize(
    ("host", "allowed", "matches"),
    [
        ("example.org", "example.org", True),
        ("EXAMPLE.org.", "example.ORG", True),
        ("api.example.org", "example.org", False),
        ("api.example.org", "*.example.org", True),
        ("a.b.example.org", "*.example.org", True),
        ("example.org", "*.example.org", False),
        ("evilexample.org", "*.example.org", False),
        ("example.org.evil.net", "example.org", False),
    ],
)
def test_a_star_stands_for_all_subdomains(host: str, allowed: str, matches: bool) -> None:
    assert connections._matches(host, allowed) is matches


def test_a_redirect_is_an_error_unless_a_get_may_follow_it(receiver: Receiver, send: Send) -> None:
    with pytest.raises(Fail, match=r"127\.0\.0\.1 answered 307 .* is not followed"):
        send(path="/to//elsewhere", max_redirects=3)
    with pytest.raises(Fail, match="is not followed"):
        send({"method": "GET"}, path="/to//elsewhere")
    assert send({"method": "GET"}, path="/to//elsewhere", max_redirects=1)["status"] == 200
    assert [seen.path for seen in receiver.seen] == ["/to//elsewhere"] * 3 + ["/elsewhere"]


def test_neither_a_url_nor_a_redirect_reaches_a_private_address_or_another_scheme(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Fail, match=r"127\.0\.0\.1 is not a public address"):
        send(allow_private_hosts=False)
    assert receiver.seen == []
    monkeypatch.setattr("handlers.connections._is_public", lambda address: address == "127.0.0.1")
    with pytest.raises(Fail, match=r"10\.0\.0\.1 is not a public address"):
        send({"method": "GET"}, path="/to/http://10.0.0.1/", max_redirects=3, allow_private_hosts=False)
    for place in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
        with pytest.raises(Fail):
            send({"method": "GET"}, path=f"/to/{place}", max_redirects=3, allow_private_hosts=False)


def test_a_redirect_to_another_host_carries_no_credentials(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "Bearer s3cret")
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    place = f"http://localhost:{receiver.server_port}/there"
    options = {"headers_env": {"Authorization": "TOKEN"}, "secret_env": "HOOK_SECRET"}
    send({"method": "GET"}, path=f"/to/{place}", max_redirects=1, **options)
    first, second = receiver.seen
    assert (first.headers["Authorization"], second.path) == ("Bearer s3cret", "/there")
    assert second.headers["Authorization"] is None
    assert second.headers["X-Signature"] is None


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"url": "file:///etc/passwd"}, "the url cannot be used"),
        ({"url": "ftp://example.org/"}, "it must begin with https:// or http://"),
        ({"url": "http://a b/"}, "a space or a control character"),
        ({"url": "http://user:pass@example.org/"}, "it contains a user name"),
        ({"url": "http://example.org:99999/"}, "the url cannot be used"),
        ({"url": ""}, "there is no url"),
        ({"url": 5}, "there is no url"),
        ({"method": "TRACE"}, "method must be one of"),
        ({"method": "GET", "body": 1}, "GET has no body"),
        ({"headers": {"X": "a\r\nHost: b"}}, "the header X must be a printable ASCII text"),
        ({"headers": {"Host": "b"}}, "the header 'Host' cannot be set"),
        ({"headers": {"x-signature": "b"}}, "the header 'x-signature' cannot be set"),
        ({"headers": {"a b": "c"}}, "the header 'a b' cannot be set"),
        ({"headers": []}, "headers must be an object"),
        ({"boddy": 1}, "unknown key 'boddy'"),
        ({"body": 1, "text": "a"}, "both a body and a text"),
        ({"text": 1}, "text must be a string"),
        ({"text": "\ud800"}, "a lone surrogate"),
        ({"method": "GET", "text": "a"}, "GET has no body"),
        ({"timeout": 6}, "timeout must be seconds, more than 0 and at most the 5"),
        ({"timeout": "1"}, "timeout must be seconds"),
        ({"timeout": float("nan")}, "timeout must be seconds"),
        ({"headers": {"Webhook-Id": "1"}}, "the header 'Webhook-Id' cannot be set"),
    ],
)
def test_an_invalid_payload_fails_for_good_and_reaches_nobody(
    receiver: Receiver, send: Send, payload: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Fail, match=problem):
        send(payload)
    assert receiver.seen == []


def test_a_url_of_the_options_is_the_only_one(receiver: Receiver, send: Send) -> None:
    send({"body": 1}, url=f"{receiver.url}/fixed")
    with pytest.raises(Fail, match="the payload must not have a url of its own"):
        send({"url": f"{receiver.url}/other"}, url=f"{receiver.url}/fixed")
    assert [seen.path for seen in receiver.seen] == ["/fixed"]


def test_a_header_of_the_options_cannot_be_replaced(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "Bearer s3cret")
    payload = {"headers": {"authorization": "mine", "X-Trace": "1"}}
    send(payload, headers_env={"Authorization": "TOKEN"})
    [seen] = receiver.seen
    assert (seen.headers.get_all("Authorization"), seen.headers["X-Trace"]) == (["Bearer s3cret"], "1")


def test_no_secret_of_the_address_is_in_a_message(send: Send) -> None:
    with pytest.raises(Fail) as caught:
        send(path="/status/s3cret/404")
    assert "s3cret" not in str(caught.value)


def test_options_are_checked_before_the_first_job() -> None:
    handler = Handler(webhook.send, "handlers.http:send")
    handler.check_options({"url": "https://example.org"})
    with pytest.raises(HandlerError, match=r"options\.retries: there is no such option"):
        handler.check_options({"retries": 1})
    assert HttpOptions().max_redirects == 0

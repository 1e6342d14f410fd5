"""handlers.download: bounded in size, time and reach. A real server on loopback answers."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from handlers import download
from handlers.options import PictureOptions
from supervisor import Fail, Retry

TRUSTING = PictureOptions(allow_urls=True, allow_private_hosts=True, url_timeout=5, max_bytes=1000)


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/status/"):
            self.send_error(int(path.rpartition("/")[2]))
        elif path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", path[4:])
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * int(path.rpartition("/")[2]))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_body_within_the_bound_arrives_whole(site: str) -> None:
    assert download.fetch(f"{site}/1000", TRUSTING) == b"x" * 1000
    assert download.fetch(f"{site}/to/{site}/10", TRUSTING) == b"x" * 10


def test_a_body_above_the_bound_is_refused(site: str) -> None:
    with pytest.raises(Fail, match="more than 1000 bytes"):
        download.fetch(f"{site}/1001", TRUSTING)


@pytest.mark.parametrize(("status", "verdict"), [(404, Fail), (403, Fail), (429, Retry), (503, Retry)])
def test_the_status_decides_between_fail_and_retry(site: str, status: int, verdict: type[Exception]) -> None:
    with pytest.raises(verdict, match=rf"127\.0\.0\.1 answered {status}"):
        download.fetch(f"{site}/status/{status}?secret=1", TRUSTING)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "FTP://127.0.0.1/x", "data:,x", "x:y"])
def test_a_redirect_that_leaves_http_fails_for_good_and_keeps_its_path_for_itself(site: str, target: str) -> None:
    with pytest.raises(Fail, match=r"127\.0\.0\.1 redirects to \w+; only http and https are followed") as told:
        download.fetch(f"{site}/to/{target}", TRUSTING)
    assert "passwd" not in str(told.value)


def test_a_proxy_of_the_environment_does_not_widen_the_reach(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert download.fetch(f"{site}/10", TRUSTING) == b"x" * 10


@pytest.mark.parametrize("url", ["http://", "http:///x", "http://[::1", "http://a b/", "http://höst.example/"])
def test_a_url_that_is_none_fails_for_good(url: str) -> None:
    with pytest.raises(Fail, match="the url cannot be used"):
        download.fetch(url, TRUSTING)


def test_no_connection_is_tried_again() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        port = server.server_port
    with pytest.raises(Retry, match="no picture from"):
        download.fetch(f"http://127.0.0.1:{port}/", TRUSTING)

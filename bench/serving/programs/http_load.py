"""Asks over HTTP, on connections that stay open."""

import http.client
import json
import os
import time

from load import drive

PATIENCE = 60.0
_IDLE = 2.0  # seconds: servers close connections that are idle for longer, some after five


class Connection:
    """`BENCH_PATH` has a place for the name of the model."""

    def __init__(self):
        self._http = http.client.HTTPConnection("127.0.0.1", int(os.environ["BENCH_PORT"]), timeout=PATIENCE)
        self._headers = {"Content-Type": "application/json", **json.loads(os.environ["BENCH_HEADERS"])}
        self._path = os.environ["BENCH_PATH"]
        self._used = time.monotonic()

    def __call__(self, model, payload):
        if time.monotonic() - self._used > _IDLE:
            self._http.close()
        try:
            self._http.request("POST", self._path.format(model), json.dumps(payload).encode(), self._headers)
            response = self._http.getresponse()
            body = response.read()
        except Exception:
            self._http.close()
            raise
        finally:
            self._used = time.monotonic()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {body[:100]!r}")
        answer = json.loads(body)
        return answer.get("result", answer)


if __name__ == "__main__":
    drive(Connection)

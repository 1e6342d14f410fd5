"""Clients of `POST /run/TYPE`: each repeats its request with the same key until it has an answer, or goes away, with no
key, so that its job is cancelled.

requester.py ADDRESS TOKEN_FILE ACKNOWLEDGED WRONG SEED

Every id that was answered is appended to ACKNOWLEDGED, and every answer that must not be to WRONG.
"""

import contextlib
import http.client
import json
import os
import pathlib
import random
import sys
import threading
import time

address, token_file, acknowledged, wrong, seed = sys.argv[1:]
CLIENTS = 3
EXPECTED = {"caption": {"mib": 30}, "embed": {"mib": 50}, "tag": {"mib": 30}}


def note(path: str, line: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def ask(kind: str, payload: dict[str, object], key: str, *, seconds: float) -> tuple[int, dict]:
    """The status and the answer. Raises OSError or HTTPException if there is none within `seconds`; without a key, the
    job is cancelled then.
    """
    token = pathlib.Path(token_file).read_text(encoding="utf-8").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    headers |= {"Idempotency-Key": key} if key else {}
    connection = http.client.HTTPConnection(address, timeout=seconds)
    with contextlib.closing(connection):
        path = f"/run/{kind}?wait=5" + ("" if key else "&cancel=true")
        connection.request("POST", path, json.dumps(payload), headers)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status in (200, 202) else {"error": body.decode()}


def request(dice: random.Random, key: str) -> None:
    kind = dice.choice(list(EXPECTED))
    payload = {"seconds": dice.choice([0, 0, 0.05]), "size": dice.choice([1, 2])}
    leaves = dice.random() < 0.2  # without waiting for the answer
    ids = set()
    for _ in range(20):
        try:
            status, body = ask(kind, payload, "" if leaves else key, seconds=0.1 if leaves else 20)
        except (OSError, http.client.HTTPException):
            if leaves:
                return
            time.sleep(0.2)
            continue
        if status in (200, 202):
            ids.add(body["id"])
            note(acknowledged, body["id"])
        if len(ids) > 1:
            note(wrong, f"the key {key} stands for several jobs: {sorted(ids)}")
        if status == 200 and body["result"] != EXPECTED[kind]:
            note(wrong, f"{kind} answered {body['result']}")
        if status not in (200, 202, 409, 429, 500, 503):
            note(wrong, f"{kind} answered {status}: {body['error'][:200]}")
        if status == 200 or leaves:
            return
        time.sleep(0.2)


def client(number: int) -> None:
    dice = random.Random(int(seed) + number)
    for count in range(1 << 30):
        request(dice, f"{os.getpid()}-{seed}-{number}-{count}")
        time.sleep(dice.uniform(0, 0.3))


for number in range(CLIENTS):
    threading.Thread(target=client, args=(number,)).start()

"""Programs for pools with a command, and installations that have them."""

from __future__ import annotations

import sys

from supervisor import Job
from tests.site_under_test import MakeSite, Site

# The oracle's lines; a program has no token to write down.
RECORD = """
import os, signal, subprocess, sys, time
from job_handler import Fail, Retry, serve

def record(what, ctx):
    fd = os.open("LEDGER", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{what} {ctx.job_id} 0 {os.getpid()} {time.time()}\\n".encode()); os.close(fd)
"""


def program_site(make_site: MakeSite, config: str, **programs: str) -> Site:
    """An installation whose programs are these files; in `config` PYTHON is this interpreter."""
    site = make_site(config.replace("PYTHON", sys.executable))
    for name, text in programs.items():
        (site.folder / f"{name}.py").write_text(text.replace("LEDGER", str(site.ledger)))
    return site


def ended(site: Site, job_id: int) -> Job:
    return site.queue.wait(job_id, timeout=30)


def failure(site: Site, job_id: int, *columns: str) -> tuple[object, ...]:
    """These columns of the one error that the job has."""
    [row] = site.rows(f"SELECT {', '.join(columns)} FROM job_errors WHERE job_id = ?", job_id)
    return row


# It speaks the protocol by itself, and breaks it as the payload says.
RUDE = """
import json, os, sys, time
def say(**message): os.write(3, json.dumps(message).encode() + b"\\n")
def rude(how, id):
    if how == "garbage": os.write(3, b"Traceback (most recent call last):\\n")
    elif how == "huge": os.write(3, b"x" * 3_000_000)
    elif how == "wrong id": say(type="result", id=id + 1)
    elif how == "late": say(type="result", id=id - 1)
    elif how == "end": os._exit(3)
    elif how == "kill": os.kill(os.getpid(), 9)
    elif how == "closes replies": os.close(3); time.sleep(60)
    elif how == "silence": time.sleep(60)
    elif how == "closes stdout": os.close(1); os.close(2); say(type="result", id=id)
    elif how == "twice": say(type="result", id=id); time.sleep(0.02); say(type="result", id=id); time.sleep(9)
    elif how == "result and end": say(type="result", id=id); time.sleep(0.02); os._exit(0)
    else: say(type="result", id=id, value=os.getpid())
say(type="hello", protocol=1)
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "job":
        try: os.write(1, f"about to {message['payload'].get('how')}\\n".encode())
        except OSError: pass
        rude(message["payload"].get("how"), message["id"])
    elif message["type"] == "bye": break
"""

HELPED = (
    RECORD
    + """
import ctypes, faulthandler, resource
kept = []

def handle(payload, ctx):
    record("start", ctx)
    what = payload.get("do", "nothing")
    if what == "loop":
        try:
            while True:
                time.sleep(0.01)  # here it hangs
        except Exception:
            pass
        finally:
            record("finally", ctx)
    elif what == "wait for cancel":
        while not ctx.cancelled:
            time.sleep(0.01)
    elif what == "hold the lock":
        ctypes.PyDLL(None).sleep(2)
    elif what == "segfault":
        ctypes.string_at(0)
    elif what == "_exit":
        os._exit(0)
    elif what == "exit":
        sys.exit(0)
    elif what == "noise":
        for _ in range(10):
            sys.stderr.write("e" * 99 + "\\n" + "noise" * 100_000 + "\\n"); sys.stdout.write("noise" * 100_000 + "\\n")
        print("the last line")
        if payload.get("crash"):
            os._exit(1)
    elif what == "starts others" and not os.path.exists("started"):
        child = subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"], start_new_session=True)
        open("started", "w").write(str(child.pid))
        time.sleep(payload.get("seconds", 300))
        if payload.get("crash"):
            os._exit(1)
    elif what == "hoard":
        kept.append(os.urandom(80 << 20))
    elif what == "outgrow a cgroup":
        open(payload["group"] + "/cgroup.procs", "w").write(str(os.getpid()))
        return len(bytearray(os.urandom(1)) * (256 << 20))
    elif what == "outgrow everything":
        while True:
            kept.append(os.urandom(1 << 20))
    elif what == "grow":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
        return len(bytes(1 << 31))
    record("end", ctx)
    return os.getpid()

class Handler:
    def teardown(self, ctx):
        record("bye", ctx)
    handle = staticmethod(handle)

serve(Handler())
"""
)
POOL = '[pools.helped]\ncommand = ["PYTHON", "helped.py"]\nworkers = 1\n'

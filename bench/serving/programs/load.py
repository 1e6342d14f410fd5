"""What asks a server: the same threads for every contestant, which differ in how they ask.

`connect` makes a function that takes the name of a model and a payload, and returns an answer or raises; each thread
has its own. The environment has the plan as JSON; the samples go into a file: [begin, end, error, pid], in
CLOCK_MONOTONIC seconds, which all processes of the machine share; `end` is null where nothing was answered.
"""

import itertools
import json
import os
import queue
import random
import threading
import time
from pathlib import Path

_PAUSE = 0.01  # seconds after an error, before the next request


class Asking:
    """The samples of all threads; one that is never answered is among them, too."""

    def __init__(self, connect, plan):
        self._connect = connect
        self._model = plan["model"]
        self._paths = itertools.cycle(plan["paths"])
        self.samples = []

    def start(self, clients, loop):
        threads = [threading.Thread(target=loop, args=(self._connect(),), daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        return threads

    def ask(self, call, begun=None):
        """Whether it was answered."""
        sample = [begun or time.monotonic(), None, None, None]
        self.samples.append(sample)
        try:
            sample[3] = call(self._model, {"path": next(self._paths)})["pid"]
        except Exception as error:
            sample[2] = f"{type(error).__name__}: {error}"[:200]
        sample[1] = time.monotonic()
        return sample[2] is None


def first(asking, plan):
    """Ask again and again until there is an answer."""

    def loop(call):
        Path(plan["ready"]).touch()
        while not asking.ask(call):
            time.sleep(_PAUSE)

    _join(asking.start(1, loop))


def saturate(asking, plan):
    """Each client asks as soon as it has its answer."""
    numbers = itertools.count()

    def loop(call):
        while next(numbers) < plan["requests"]:
            asking.ask(call)

    _join(asking.start(plan["clients"], loop))


def paced(asking, plan):
    """Requests at their times, whatever became of those before: at random intervals, the same for everybody."""
    chance, due = random.Random(1), queue.SimpleQueue()

    def loop(call):
        while (begun := due.get()) is not None:
            asking.ask(call, begun)

    threads = asking.start(plan["clients"], loop)
    at = time.monotonic()
    for _ in range(plan["requests"]):
        at += chance.uniform(0.5, 1.5) / plan["rate"]
        time.sleep(max(0.0, at - time.monotonic()))
        due.put(time.monotonic())
    for _ in threads:
        due.put(None)
    _join(threads)


def hold(asking, plan):
    """Saturate while a worker is killed, until somebody else has answered and for a while more, but not for ever."""
    over, killed = threading.Event(), Path(plan["killed"])

    def loop(call):
        while not over.is_set():
            if not asking.ask(call):
                time.sleep(_PAUSE)

    threads = asking.start(plan["clients"], loop)
    while sum(sample[1] is not None for sample in list(asking.samples)) < plan["clients"]:
        time.sleep(0.02)
    Path(plan["ready"]).touch()
    while not killed.exists():
        time.sleep(0.02)
    at, victim = json.loads(killed.read_text())
    while time.monotonic() < at + plan["patience"] and not _answered(asking.samples, at, victim):
        time.sleep(0.02)
    time.sleep(plan["more"])
    over.set()
    end = time.monotonic() + plan["patience"]
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _answered(samples, at, victim):
    return any(sample[1] and sample[1] > at and sample[3] not in (None, victim) for sample in list(samples))


def _join(threads):
    for thread in threads:
        thread.join()


def drive(connect):
    plan = json.loads(os.environ["BENCH_PLAN"])
    asking = Asking(connect, plan)
    {"first": first, "saturate": saturate, "paced": paced, "hold": hold}[plan["kind"]](asking, plan)
    Path(plan["samples"]).write_text(json.dumps(asking.samples))
    os._exit(0)  # threads that wait for an answer that never comes

"""The model in a loop, without a server: `bare.py PROCESSES PICTURES PATH…` prints when each began and ended."""

import json
import multiprocessing
import sys
import time

from scoring import Scorer


def loop(ready, taken, told, pictures, paths):
    scorer, samples = Scorer(), []
    ready.wait()
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= pictures:
            break
        began = time.monotonic()
        scorer.score(paths[number % len(paths)])
        samples.append((began, time.monotonic()))
    told.put(samples)


def main():
    processes, pictures, paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()
    shared = (fork.Barrier(processes), fork.Value("q", 0), told)
    started = [fork.Process(target=loop, args=(*shared, pictures, paths)) for _ in range(processes)]
    for process in started:
        process.start()
    samples = [sample for _ in started for sample in told.get()]
    for process in started:
        process.join()
    print(json.dumps(samples))


if __name__ == "__main__":
    main()

"""What a program prints between two jobs belongs to none, whenever the worker reads it."""

from __future__ import annotations

import contextlib
import os
import subprocess

from supervisor.worker.program import Output


def test_what_is_printed_between_jobs_is_kept_for_none() -> None:
    kept: list[bytes] = []
    pipe, printing = os.pipe()
    program = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(program.pid)
    output = Output(pipe, pidfd, lambda: None, kept.append)

    def print_out(text: bytes) -> None:
        os.write(printing, text)

    with contextlib.ExitStack() as closing:
        closing.callback(os.close, pidfd)
        closing.callback(os.close, pipe)
        output.start()
        closing.callback(output.join)
        closing.callback(os.close, printing)
        closing.enter_context(program)
        print_out(b"before\n")
        for number in (b"1", b"2"):
            output.begin()
            print_out(b"job " + number)
            output.settle()
            print_out(b"after\n")

    assert kept == [b"job 1", b"job 2"]

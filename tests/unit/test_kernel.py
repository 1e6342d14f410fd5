"""What /proc tells of a process and those that it has started."""

from __future__ import annotations

import subprocess
import sys

from supervisor.system import kernel

HOARD = "import sys; kept = b'x' * (64 << 20); print(flush=True); sys.stdin.read()"


def test_the_memory_of_a_family_is_that_of_all_its_members() -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {HOARD!r}])"
    command = [sys.executable, "-S", "-c", nested]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        alone, together = kernel.memory_of(parent.pid), kernel.memory_of_family(parent.pid)
        parent.stdin.close()
    assert 0 < alone < 32 << 20
    assert together - alone > 64 << 20


def test_a_process_that_is_gone_has_no_memory() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert kernel.memory_of_family(process.pid) == 0

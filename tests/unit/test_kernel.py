"""What /proc tells of a process and those that it has started."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys

import pytest

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


def refuses_huge_pages(memory: mmap.mmap) -> bool:
    """Whether the kernel has no huge pages for all of it, for example because the free memory is in small pieces."""
    first = ctypes.c_char.from_buffer(memory)
    start = -(-ctypes.addressof(first) // kernel._HUGE) * kernel._HUGE
    length = len(memory) - kernel._HUGE
    return kernel._libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), kernel._MADV_COLLAPSE) != 0


def test_large_memory_is_gathered_into_huge_pages_and_stays_what_it_is() -> None:
    size = 64 << 20
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at : at + 8] = at.to_bytes(8, "little")

        gathered = kernel.gather_pages(20.0)

        assert all(memory[at : at + 8] == at.to_bytes(8, "little") for at in range(0, size, mmap.PAGESIZE))
        if gathered < size - (4 << 20):
            if refuses_huge_pages(memory):
                pytest.skip("this kernel, or the memory that is free, allows no huge pages on demand")
            gathered = kernel.gather_pages(20.0)  # it had none for a moment
    assert gathered >= size - (4 << 20)


def test_without_time_nothing_is_gathered() -> None:
    assert kernel.gather_pages(-1.0) == 0


def test_freed_memory_goes_back_to_the_kernel() -> None:
    """The last block keeps the allocator from shrinking the heap by itself."""
    program = """
import ctypes, psutil
from supervisor.system import kernel

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
size = 64 << 10
blocks = [libc.malloc(ctypes.c_size_t(size)) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, size)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
before = psutil.Process().memory_info().rss
kernel.trim_heap()
print(before - psutil.Process().memory_info().rss)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(told.stdout) > 50e6


@pytest.mark.fault(30)
def test_what_cannot_be_read_for_want_of_descriptors_is_unknown_and_not_nothing() -> None:
    program = """
import os, resource, subprocess
from supervisor.system import ending, kernel

child = subprocess.Popen(["sleep", "600"])
most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
print(kernel.children(os.getpid()), *kernel.cpu_and_state(child.pid), ending.kill_children())
resource.setrlimit(resource.RLIMIT_NOFILE, most)
state = kernel.cpu_and_state(child.pid).state
print(kernel.children(os.getpid()) == [child.pid], state in "RSD", ending.kill_children())
print(*kernel.cpu_and_state(child.pid))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["None None None None", "True True 1", "0.0 "]


def test_a_process_that_was_killed_is_ending_from_then_until_it_is_reaped() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not kernel.is_ending(process.pid)
        process.kill()
        assert kernel.is_ending(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert kernel.is_ending(process.pid)
    assert not kernel.is_ending(process.pid)

"""Imported first by a child's interpreter: takes away what macOS lacks, as far as this project could use it.

Nothing here knows how macOS behaves; it shows only that nothing of Linux is needed.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import os
import select
import signal
import socket
import sys
import sysconfig
import urllib.request  # noqa: F401 - it asks macOS for proxies if that is the platform
import zoneinfo
from collections.abc import Callable
from typing import Any

ABSENT = {
    os: "eventfd eventfd_read eventfd_write EFD_NONBLOCK EFD_CLOEXEC EFD_SEMAPHORE pidfd_open memfd_create MFD_CLOEXEC"
    " O_PATH O_TMPFILE O_NOATIME O_DIRECT pipe2 sched_getaffinity sched_setaffinity sched_setscheduler posix_fadvise"
    " copy_file_range splice getxattr setxattr listxattr waitid P_PIDFD getresuid getrandom setns unshare",
    select: "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLET EPOLLONESHOT EPOLLEXCLUSIVE EPOLL_CLOEXEC",
    signal: "sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX pidfd_send_signal SIGPWR SIGPOLL SIGSTKFLT",
    fcntl: "F_OFD_SETLK F_OFD_SETLKW F_OFD_GETLK F_ADD_SEALS F_GET_SEALS F_SETPIPE_SZ F_GETPIPE_SZ F_SETLEASE F_NOTIFY",
    socket: "SO_PEERCRED SO_PASSCRED SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK",
}
SYMBOLS = {"prctl", "inotify_init1", "inotify_add_watch", "inotify_rm_watch", "malloc_trim", "mallopt", "syscall"}


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in SYMBOLS:
            raise AttributeError(f"symbol not found: {name}")
        return super().__getattr__(name)


def without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *args, **options)

    return guarded


sysconfig.get_config_vars()  # while the name of the platform is still true
zoneinfo.available_timezones()
for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined] # that of Linux asks for the affinity
for name in ("open", "readlink", "stat", "lstat", "listdir", "scandir"):
    setattr(os, name, without_proc(getattr(os, name)))
builtins.open = io.open = without_proc(io.open)
ctypes.CDLL = Library  # type: ignore[misc]
for name in ("selectors", "tempfile"):  # they may have looked already
    sys.modules.pop(name, None)
sys.platform = "darwin"

"""What must not be in an image that workers are forked from."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.template import image
from supervisor.template.image import descriptors, findings
from supervisor.worker.handler import HandlerError


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads and children that the test runner has itself are not the image's."""
    threads, children = set(image._threads()), set(image._children())
    look, count = image._threads, image._children
    monkeypatch.setattr(image, "_threads", lambda: [name for name in look() if name not in threads])
    monkeypatch.setattr(image, "_children", lambda: [name for name in count() if name not in children])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def found(own: Mapping[int, str], database: Path | None = None) -> str:
    return " and ".join(finding.what for finding in findings(own, database))


def test_a_good_image_has_nothing_to_be_found(stack: ExitStack, tmp_path: Path) -> None:
    made = descriptors()
    stack.enter_context((tmp_path / "log").open("w"))
    for end in socket.socketpair():
        stack.enter_context(end)
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).connect(listening.getsockname())
    os.close(os.eventfd(0))

    assert findings(made) == []


def test_threads_are_named_and_those_just_ended_forgotten() -> None:
    made = descriptors()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert found(made).startswith("a thread (")
    finally:
        over.set()
        thread.join()
    assert findings(made) == []


def test_only_what_was_opened_since_counts(stack: ExitStack, tmp_path: Path) -> None:
    before = stack.enter_context(closing(sqlite3.connect(tmp_path / "before.db")))
    before.execute("CREATE TABLE t(a)")
    made = descriptors()

    assert findings(made) == []


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_an_open_database_is_found_in_whatever_mode(stack: ExitStack, tmp_path: Path, mode: str) -> None:
    made = descriptors()
    connection = stack.enter_context(closing(sqlite3.connect(tmp_path / "some.db")))
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE t(a)")

    assert found(made) == f"an open database ({tmp_path}/some.db)"


def test_a_database_that_is_only_read_is_a_library_s_own_data_unless_it_is_the_configured_one(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a)")
    made = descriptors()
    reader = stack.enter_context(closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)))
    reader.execute("SELECT * FROM t").fetchall()

    assert findings(made) == []
    assert found(made, path) == f"an open database ({path})"


def test_connections_are_found_over_the_network_and_to_a_server_s_socket(stack: ExitStack, tmp_path: Path) -> None:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    local = stack.enter_context(socket.socket(socket.AF_UNIX))
    local.bind(str(tmp_path / "postgres"))
    local.listen()
    made = descriptors()
    stack.enter_context(socket.create_connection(server.getsockname()))
    stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "postgres"))

    port = server.getsockname()[1]
    assert found(made) == f"a network connection (127.0.0.1:{port}, {tmp_path}/postgres)"


def test_an_event_loop_and_a_child_process_are_found(stack: ExitStack) -> None:
    made = descriptors()
    stack.callback(asyncio.new_event_loop().close)
    with subprocess.Popen(["sleep", "60"]) as child:
        stack.callback(child.kill)

        what = found(made)
        child.kill()
    assert what.startswith("an event loop and a process that it has started (")
    assert what.endswith(f" {child.pid})")


def test_a_context_of_the_gpu_is_found(stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_GPU", str(tmp_path / "nvidia"))
    made = descriptors()
    stack.enter_context((tmp_path / "nvidia-uvm").open("w"))

    [finding] = findings(made)
    assert finding.gpu
    assert finding.what == f"a CUDA context ({tmp_path}/nvidia-uvm)"


@pytest.mark.skipif(sys.version_info < (3, 15), reason="lazy imports came with 3.15")
def test_what_the_handlers_package_imports_lazily_is_in_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "__init__.py").write_text("")
    (tmp_path / "quick" / "jobs.py").write_text(
        "lazy from quick import models\nlazy import quick_and_missing\ndef handle(payload, ctx): ...\n"
    )
    (tmp_path / "quick" / "models.py").write_text("lazy import quick_to_load\nlazy import quick_to_load as again\n")
    (tmp_path / "quick_to_load.py").write_text("lazy import quick_for_others\n")
    (tmp_path / "quickened.py").write_text("lazy import quick_too\ndef around(job, run): ...\n")
    (tmp_path / "quick_too.py").write_text("")
    config = tmp_path / "supervisor.toml"
    config.write_text('[pools.quick]\nhandler = "quick.jobs:handle"\nmiddleware = ["quickened:around"]\n')
    image.load_image(load(config).pools["quick"], None, pytest.fail)
    loaded = {name for name in sys.modules if name.startswith("quick")}
    for name in loaded:
        del sys.modules[name]
    assert loaded == {"quick", "quick.jobs", "quick.models", "quick_to_load", "quickened", "quick_too"}


def test_with_devices_to_share_out_the_image_must_not_have_used_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_GPU", str(tmp_path / "nvidia"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "eager.py").write_text(f"kept = open('{tmp_path}/nvidia0', 'w')\ndef handle(payload, ctx): ...\n")
    config = tmp_path / "supervisor.toml"
    warnings: list[dict[str, str]] = []

    def load_it(keys: str) -> None:
        if (before := sys.modules.pop("eager", None)) is not None:
            before.kept.close()
        config.write_text(f'[pools.eager]\nhandler = "eager:handle"\n{keys}\n')
        image.load_image(load(config).pools["eager"], None, lambda event, **fields: warnings.append(fields))

    load_it("")
    assert warnings == [
        {
            "found": f"a CUDA context ({tmp_path}/nvidia0)",
            "hint": 'use the GPU in the worker, or write start = "spawn"',
        }
    ]
    with pytest.raises(HandlerError, match="no worker could have a device of its own: use the GPU in setup, or write"):
        load_it("gpus = [0]")
    sys.modules.pop("eager").kept.close()

"""A key that no other job ever has, although ids come again after a restore."""

from __future__ import annotations

from pathlib import Path

from supervisor import Queue
from supervisor.engine import open_engine
from supervisor.testing import run_due
from supervisor.worker.context import Context


def test_a_jobs_key_is_the_same_in_every_run_and_another_after_a_restore(tmp_path: Path) -> None:
    url, keys = f"sqlite:///{tmp_path}/jobs.db", list[str]()

    def work(payload: object, ctx: Context) -> None:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise ValueError

    with Queue(url) as queue:
        queue.create_tables()
        engine = open_engine(url)
        engine.database.back_up(tmp_path / "copy.db")
        before = queue.enqueue("work")
        run_due(queue, {"work": work})
        run_due(queue, {"work": work}, now=4e9)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    engine.database.restore(tmp_path / "copy.db")
    with Queue(url) as queue:
        assert queue.enqueue("work") == before
        run_due(queue, {"work": work})
    assert len(keys) == 3
    assert len(set(keys)) == 2

"""Calls that type checkers must accept."""

from supervisor import Context, task
from supervisor.testing import context


@task
def resize(path: str, width: int = 800) -> dict[str, int]:
    return {path: width}


@task("pictures.tag", timeout="30s", priority=5)
async def tag(ctx: Context, path: str) -> list[str]:
    ctx.progress(1.0)
    return [path]


@task
def note(text: str, ctx: Context | None = None) -> None:
    assert text or ctx


number: int = resize.enqueue("cat.jpg", width=3)
again: int = resize.options(delay="10s", unique_key="cat").enqueue(path="cat.jpg")
size: dict[str, int] = resize("cat.jpg")
tag.enqueue("cat.jpg")
note.enqueue(text="x")


async def later() -> int:
    assert await tag(context(), "cat.jpg")
    return await tag.aenqueue(path="cat.jpg")

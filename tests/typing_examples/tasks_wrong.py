"""Calls that type checkers must reject: each line with the comment `wrong`, and no other."""

from supervisor import Context, task


@task
def resize(path: str, width: int = 800) -> dict[str, int]:
    return {path: width}


@task("pictures.tag", timeout="30s")
async def tag(ctx: Context, path: str) -> list[str]:
    ctx.progress(1.0)
    return [path]


resize.enqueue(pth="cat.jpg")  # wrong
resize.enqueue("cat.jpg", width="wide")  # wrong
resize.options(delay="10s").enqueue()  # wrong
resize.options(dely="10s")  # wrong
tag.enqueue(5)  # wrong
tag("cat.jpg")  # wrong
number: str = resize.enqueue("cat.jpg")  # wrong

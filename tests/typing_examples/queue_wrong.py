"""Calls of a queue that type checkers must reject: each line with the comment `wrong`, and no other."""

from supervisor import AsyncQueue


async def use(queue: AsyncQueue) -> None:
    await queue.enqueue(5)  # wrong
    await queue.enqueue("tag", prioritty=5)  # wrong
    await queue.put("tag", unique_key=5)  # wrong
    await queue.jobs(limit="5")  # wrong
    await queue.cancel()  # wrong

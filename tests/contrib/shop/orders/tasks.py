import asyncio
import os
import threading
import time
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.dispatch import receiver
from django.utils import translation

from orders.api import signals, tasks
from orders.models import Order
from supervisor import Fail, Retry

SEEN = Path(settings.BASE_DIR) / "seen"
LOADED_IN = os.getpid()
connection.ensure_connection()  # as careless code may; the handler closes it before workers are forked


def seen(*words):
    with SEEN.open("a") as file:
        print(*words, file=file)


@receiver(signals.task_started)
def started(sender, task_result, **others):
    seen("started", task_result.id, task_result.status, task_result.attempts)


@receiver(signals.task_finished)
def finished(sender, task_result, **others):
    seen("finished", task_result.id, task_result.status, task_result.attempts)


@tasks.task
def ship(order):
    Order.objects.filter(id=order).update(state="shipped")
    return {"order": order}


@tasks.task(queue_name="mail", priority=5)
def mail(to):
    return to


@tasks.task(queue_name="mail")
def meet(name):
    """Ends when three of these run at the same time."""
    Order.objects.create(name=name, state=f"met by {threading.get_native_id()}")
    until = time.monotonic() + 30
    while Order.objects.filter(state__startswith="met").count() < 3:
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.01)
    return os.getpid()


@tasks.task
async def ship_async(order):
    found = await Order.objects.aget(id=order)
    await asyncio.sleep(0)
    found.state = "shipped"
    await found.asave()
    return found.name


@tasks.task(takes_context=True)
def tell(context, word):
    context.job.progress(0.5, "half")
    return [context.attempt, context.task_result.id, word]


@tasks.task
def fails(kind):
    if kind == "fail":
        raise Fail("no")
    if kind == "retry":
        raise Retry("later", after="1h")
    raise Order.DoesNotExist(kind)


@tasks.task(takes_context=True)
def second_time(context):
    if context.attempt < 2:
        raise ValueError("the first time")
    return context.attempt


@tasks.task
def odd():
    return {1, 2}


@tasks.task
def where():
    """Where it runs: whether the module was loaded in this process, and whether a connection is open from before."""
    open_before = connection.connection is not None
    Order.objects.count()
    language = translation.get_language()
    threads = sorted(thread.name for thread in threading.enumerate())
    translation.activate("de")
    return [os.getpid() == LOADED_IN, open_before, language, [os.getpid(), threads]]


@tasks.task
async def sleeps_async():
    try:
        seen("sleeps")
        await asyncio.sleep(60)
    finally:
        seen("cleaned up")

"""Celery on Redis, with results, and with the settings that keep the task of a killed worker."""

import os

import scoring
from celery import Celery
from celery.signals import worker_process_init

PATIENCE = 60.0
app = Celery("celery_scores", broker=os.environ["BENCH_REDIS"], backend=os.environ["BENCH_REDIS"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_routes={name: {"queue": name} for name in scoring.NAMES},
)
scorer = None


@worker_process_init.connect
def load(**_):
    global scorer
    scorer = scoring.Scorer()


def score(path):
    return scorer.score(path)


tasks = {name: app.task(score, name=name) for name in scoring.NAMES}

if __name__ == "__main__":
    from load import drive

    drive(lambda: lambda model, payload: tasks[model].delay(payload["path"]).get(timeout=PATIENCE))

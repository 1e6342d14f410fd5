"""Our backend as two of Django's, for its own tests: DummyBackend keeps what it has enqueued, ImmediateBackend has run
it when `enqueue` returns.
"""

import time

from supervisor.contrib.django import TasksBackend
from supervisor.domain.settlement import RetryPolicy
from supervisor.testing import run_due


class Keeping(TasksBackend):
    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.ids = []

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        self.ids.append(result.id)
        return result

    @property
    def results(self):
        return [self.get_result(result_id) for result_id in self.ids]

    def clear(self):
        while self.ids:
            self._queue().cancel(int(self.ids[-1]))
            self._queue().delete(int(self.ids.pop()))


class Running(TasksBackend):
    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        handler = {self.type_of(task.queue_name): "supervisor.contrib.django.worker:Tasks"}
        try:
            run_due(self._queue(), handler, now=time.time() + 1, retry=RetryPolicy(max_attempts=1))
        except KeyboardInterrupt:
            self._queue().cancel(int(result.id))
            raise
        result.refresh()
        return result

"""A real supervisor runs what Django's test client enqueues."""

import signal
import subprocess
import sys
import time

from django.conf import settings
from django.test import TransactionTestCase

from orders import tasks as own
from orders.api import TaskResultDoesNotExist, tasks
from orders.models import Order
from supervisor import Queue

PATIENCE = 60


def wait_for(condition):
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError((settings.BASE_DIR / "log").read_text())
        time.sleep(0.02)
    return value


class Working(TransactionTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        own.SEEN.write_text("")
        with (settings.BASE_DIR / "log").open("w") as log:
            command = [sys.executable, "-m", "supervisor", "run"]
            cls.supervisor = subprocess.Popen(command, cwd=settings.BASE_DIR, stdout=log, stderr=log)
        cls.addClassCleanup(cls.stop)

    @classmethod
    def stop(cls):
        cls.supervisor.send_signal(signal.SIGTERM)
        assert cls.supervisor.wait(PATIENCE) == 0

    def finished(self, result):
        def look():
            result.refresh()
            return result.is_finished

        wait_for(look)
        return result

    def queue(self):
        return Queue(tasks.default_task_backend.url())

    def test_a_request_enqueues_with_its_row_and_the_page_sees_the_end(self):
        bought = self.client.get("/buy").json()
        wait_for(
            lambda: self.client.get(f"/state/{bought['task']}").json() == {"status": "SUCCESSFUL", "finished": True}
        )
        self.assertEqual(Order.objects.get(id=bought["order"]).state, "shipped")

    def test_a_request_that_rolls_back_leaves_no_job(self):
        before = own.ship.enqueue(0)
        self.assertEqual(self.client.get("/buy?fail").status_code, 500)
        after = own.ship.enqueue(0)
        for between in range(int(before.id) + 1, int(after.id)):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.default_task_backend.get_result(str(between))
        self.assertEqual(Order.objects.count(), 0)

    def test_times_and_attempts_are_those_of_the_runs(self):
        result = self.finished(own.second_time.enqueue())
        self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", 2, 2), result.errors)
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLess(result.started_at, result.last_attempted_at)
        self.assertLessEqual(result.last_attempted_at, result.finished_at)
        self.assertRegex(result.worker_ids[0], "^django-[0-9]+$")
        self.assertIn("the first time", result.errors[0].traceback)
        self.assertNotIn("contrib", result.errors[0].traceback)

    def test_the_code_is_loaded_before_the_fork_and_connections_are_not_kept(self):
        first = self.finished(own.where.enqueue())
        second = self.finished(own.where.enqueue())
        for result in (first, second):
            loaded_here, open_before, language, _ = result.return_value
            self.assertEqual((loaded_here, open_before, language), (False, False, "en-us"))
        self.assertNotIn("unsafe_to_fork", (settings.BASE_DIR / "log").read_text())

    def test_async_tasks_leave_no_thread_and_no_connection(self):
        order = Order.objects.create(name="lamp")
        before = self.finished(own.where.enqueue()).return_value
        result = self.finished(own.ship_async.enqueue(order.id))
        self.assertEqual(result.return_value, "lamp", result.errors)
        after = self.finished(own.where.enqueue()).return_value
        self.assertEqual(after, before)
        self.assertNotIn("ThreadPool", str(after))

    def test_a_worker_may_run_several_at_the_same_time(self):
        results = [self.finished(result) for result in [own.meet.enqueue(name) for name in "abc"]]
        self.assertEqual(len({result.return_value for result in results}), 1)
        self.assertEqual(Order.objects.values("state").distinct().count(), 3)

    def test_a_running_task_can_be_cancelled(self):
        result = own.sleeps_async.enqueue()
        wait_for(lambda: "sleeps" in own.SEEN.read_text())
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("RUNNING", 1))
        self.queue().cancel(int(result.id))
        self.finished(result)
        self.assertEqual(result.status, "FAILED")
        self.assertEqual(self.queue().job(int(result.id)).status, "cancelled")
        self.assertIn("cleaned up", own.SEEN.read_text())

    def test_signals_of_a_task_that_fails_are_sent_in_the_worker(self):
        result = self.finished(own.fails.enqueue("x"))
        lines = [line for line in own.SEEN.read_text().splitlines() if line.split()[1:2] == [result.id]]
        self.assertEqual(
            lines,
            [f"started {result.id} RUNNING 1", f"started {result.id} RUNNING 2", f"finished {result.id} FAILED 2"],
        )
        self.assertEqual(len(result.errors), 2)

    def test_so_they_are_in_a_pool_with_concurrency(self):
        result = self.finished(own.fails.using(queue_name="mail").enqueue("fail"))
        lines = [line for line in own.SEEN.read_text().splitlines() if line.split()[1:2] == [result.id]]
        self.assertEqual(lines, [f"started {result.id} RUNNING 1", f"finished {result.id} FAILED 1"])

    def test_the_supervisor_and_the_settings_agree_on_the_database(self):
        check = [sys.executable, "-m", "supervisor", "check"]
        url = f"sqlite:///{settings.BASE_DIR}/app.db"
        for database, code in ((url, 0), ("sqlite:////tmp/elsewhere.db", 2)):
            ended = subprocess.run(
                [*check, "--database", database],
                cwd=settings.BASE_DIR,
                capture_output=True,
                text=True,
            )
            self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        self.assertIn("Django's tasks are enqueued into", ended.stdout + ended.stderr)

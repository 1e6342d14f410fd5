"""Enqueueing and results, in one process."""

import asyncio
import datetime
import time
from unittest import mock

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, transaction
from django.db.backends.signals import connection_created
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from orders import tasks as own
from orders.api import InvalidTask, TaskResultDoesNotExist, signals, tasks
from orders.models import Order
from supervisor import InvalidJob, Queue
from supervisor.testing import run_due

HANDLER = "supervisor.contrib.django.worker:Tasks"


def queue():
    return tasks.default_task_backend.queue


def run(**options):
    return run_due(queue(), {"django": HANDLER, "django.mail": HANDLER}, **options)


class NoJobs:
    def setUp(self):
        queue().create_tables()
        with connections["default"].cursor() as cursor:  # Django empties the tables of its models only
            cursor.execute("DELETE FROM jobs")


class Enqueueing(NoJobs, TransactionTestCase):
    databases = {"default", "other"}

    def test_a_job_has_the_queues_type_the_priority_and_the_task(self):
        result = own.mail.using(priority=-100).enqueue("ada")
        job = queue().job(int(result.id))
        self.assertEqual((job.type, job.priority), ("django.mail", -100))
        self.assertEqual(job.payload, {"task": "orders.tasks.mail", "args": ["ada"], "kwargs": {}})
        self.assertEqual(queue().job(int(own.mail.enqueue("b").id)).priority, 5)

    def test_a_rollback_leaves_no_job_and_a_commit_does(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            lost = own.ship.enqueue(1)
            self.assertEqual(own.ship.get_result(lost.id), lost)
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            own.ship.get_result(lost.id)
        with transaction.atomic():
            kept = own.ship.enqueue(1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():  # a savepoint
                own.ship.enqueue(2)
                raise ZeroDivisionError
        self.assertEqual([job.id for job in queue().jobs("django", "pending", limit=1)], [int(kept.id)])

    def test_in_a_broken_transaction_nothing_is_enqueued(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            with self.assertRaises(transaction.TransactionManagementError):
                own.ship.enqueue(1)

    def test_a_locked_database_is_djangos_error(self):
        with mock.patch.object(
            Queue, "enqueue", side_effect=connections["default"].Database.OperationalError("locked")
        ):
            with self.assertRaisesMessage(DatabaseError, "locked"):
                own.ship.enqueue(1)

    def test_a_task_with_another_database_is_enqueued_at_its_commit(self):
        seen = []
        signals.task_enqueued.connect(lambda task_result, **others: seen.append(task_result.id), weak=False)
        task = own.ship.using(backend="apart")
        with transaction.atomic(using="other"):
            result = task.enqueue(1)
            self.assertEqual((result.id, result.enqueued_at, seen), ("", None, []))
        self.assertEqual(seen, [result.id])
        self.assertEqual(task.get_result(result.id), result)
        with self.assertRaises(ZeroDivisionError), transaction.atomic(using="other"):
            task.enqueue(2)
            raise ZeroDivisionError
        self.assertEqual(seen, [result.id])
        self.assertNotEqual(task.enqueue(3).id, "")  # no transaction

    def test_using_takes_options_of_the_job(self):
        key = {"concurrency_key": "user 7", "meta": {"a": 1}, "expires_in": "1h", "max_attempts": 2}
        first, second = (own.mail.using(priority=3).using(**key).enqueue(name) for name in "ab")
        last = own.ship.using(after=[first, second.id]).enqueue(1)
        jobs = [queue().job(int(one.id)) for one in (first, second, last)]
        self.assertEqual([(job.meta, job.max_attempts) for job in jobs], [({"a": 1}, 2)] * 2 + [(None, None)])
        self.assertEqual(queue().why(jobs[2].id)[0].jobs, (jobs[0].id, jobs[1].id))
        self.assertEqual((last.status, own.ship.get_result(last.id)), ("READY", last))
        run()
        last.refresh()
        self.assertEqual(last.status, "SUCCESSFUL")
        with self.assertRaisesMessage(TypeError, "concurency_key"):
            own.mail.using(concurency_key="a")
        with self.assertRaisesMessage(InvalidJob, "there is no job 4711"):
            own.mail.using(after=[4711]).enqueue("a")
        with self.assertRaises(TypeError):
            own.mail.using(delay="1h")

    def test_run_after_is_kept_and_obeyed(self):
        later = timezone.now() + datetime.timedelta(hours=1)
        result = own.ship.using(run_after=later).enqueue(1)
        self.assertEqual(own.ship.get_result(result.id), result)
        self.assertEqual(result.task.run_after, later)
        run()
        result.refresh()
        self.assertEqual(result.status, "READY")
        run(now=time.time() + 3601)
        result.refresh()
        self.assertEqual(result.status, "SUCCESSFUL")

    def test_what_cannot_be_enqueued_is_refused(self):
        with self.assertRaisesMessage(InvalidTask, "valid for backend"):
            own.ship.using(queue_name="unknown")
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            own.ship.enqueue(object())
        with self.assertRaises(InvalidJob):
            own.ship.enqueue("x" * (1 << 20))

    def test_async(self):
        async def both():
            result = await own.ship.aenqueue(1)
            await result.arefresh()
            return result, await own.ship.aget_result(result.id)

        self.assertEqual(*asyncio.run(both()))

    def test_other_jobs_are_no_results(self):
        other = queue().enqueue("resize", {"path": "cat.jpg"})
        for payload in ([], "x", {"task": 5}, {"task": "orders.tasks.ship", "args": 5}):
            odd = queue().enqueue("django.mail", payload)
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.default_task_backend.get_result(str(odd))
            [job] = run()[-1:]
            self.assertIn('the payload must be like {"task": ', job.last_error)
        gone = queue().enqueue("django", {"task": "orders.tasks.gone", "args": [], "kwargs": {}})
        no_task = queue().enqueue("django", {"task": "os.getpid", "args": [], "kwargs": {}})
        for unknown in (other, gone, no_task, 999999, "x", ""):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.default_task_backend.get_result(str(unknown))
        [first, second] = run()
        self.assertEqual((first.status, second.status), ("failed", "failed"))
        self.assertIn("orders.tasks", first.last_error)
        self.assertEqual(second.last_error, "os.getpid is not a task")

    def test_a_batch_of_tasks_ends_with_another_one_that_knows_its_id(self):
        backend = tasks.default_task_backend
        last = {"task": "orders.tasks.tell", "args": ["all"]}
        with transaction.atomic():
            with backend.queue.batch(on_done="django", payload=last, connection=connections["default"]) as batch:
                own.ship.using(batch=batch.id).enqueue(1)
        job = run()[-1]
        self.assertEqual((job.payload, job.meta), (last, {"batch": batch.id}))
        self.assertEqual(job.result, [1, str(job.id), "all"])
        with self.assertRaisesMessage(InvalidJob, 'on_done: write the name of a type, like "mail", in place of'):
            backend.queue.batch(on_done=own.tell).__enter__()


class Results(NoJobs, TransactionTestCase):
    def test_a_successful_task(self):
        order = Order.objects.create(name="lamp")
        result = own.ship.enqueue(order.id)
        self.assertEqual((result.status, result.attempts), ("READY", 0))
        run()
        self.assertIsNone(connections["default"].connection)
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", {"order": order.id}, 1))
        self.assertLessEqual(result.enqueued_at, result.started_at)
        order.refresh_from_db()
        self.assertEqual(order.state, "shipped")

    def test_a_retry_is_ready_again_and_keeps_its_errors(self):
        result = own.second_time.enqueue()
        run()
        result.refresh()
        self.assertEqual((result.status, result.attempts, result.is_finished), ("READY", 1, False))
        self.assertEqual(result.errors[0].exception_class, ValueError)
        self.assertIn("the first time", result.errors[0].traceback)
        first = result.started_at
        run(now=time.time() + 60)
        result.refresh()
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", 2))
        self.assertEqual((len(result.worker_ids), len(result.errors)), (2, 1))
        self.assertEqual(result.started_at, first)
        self.assertGreater(result.last_attempted_at, first)

    def test_failures_name_their_exceptions(self):
        expected = {"fail": "supervisor.Fail", "retry": "supervisor.Retry", "x": "orders.models.Order.DoesNotExist"}
        for kind, path in expected.items():
            result = own.fails.enqueue(kind)
            run(limit=1)
            result.refresh()
            self.assertEqual(result.status, "FAILED" if kind == "fail" else "READY")
            self.assertEqual(result.errors[0].exception_class_path, path)
            if kind != "x":
                self.assertTrue(issubclass(result.errors[0].exception_class, Exception))
            with self.assertRaises(ValueError):
                _ = result.return_value

    def test_what_can_never_succeed_fails_at_once(self):
        odd, wrong = own.odd.enqueue(), own.ship.enqueue()
        run()
        odd.refresh()
        wrong.refresh()
        self.assertEqual((odd.status, odd.errors[0].exception_class), ("FAILED", TypeError))
        self.assertEqual(wrong.status, "FAILED")
        self.assertEqual(wrong.errors[0].traceback, "orders.tasks.ship: missing a required argument: 'order'")

    def test_cancelled_and_quarantined_jobs_have_failed(self):
        result = own.ship.enqueue(1)
        queue().cancel(int(result.id))
        result.refresh()
        self.assertEqual((result.status, result.errors), ("FAILED", []))

    def test_times_are_as_the_settings_want_them(self):
        result = own.ship.enqueue(1)
        self.assertIs(timezone.is_aware(result.enqueued_at), True)
        with override_settings(USE_TZ=False):
            naive = own.ship.get_result(result.id).enqueued_at
            self.assertIs(timezone.is_aware(naive), False)
            later = own.ship.using(run_after=datetime.datetime.now() + datetime.timedelta(hours=1)).enqueue(1)
            self.assertEqual(own.ship.get_result(later.id), later)
        self.assertEqual(naive.timestamp(), result.enqueued_at.timestamp())

    def test_a_context_leads_to_the_job(self):
        result = own.tell.enqueue("hello")
        run()
        result.refresh()
        self.assertEqual(result.return_value, [1, result.id, "hello"])
        self.assertEqual(queue().job(int(result.id)).progress, 1)

    def test_async_tasks_use_the_database(self):
        made = []

        def note(connection, **others):
            made.append(connection)

        order = Order.objects.create(name="lamp")
        result = own.ship_async.enqueue(order.id)
        connection_created.connect(note)
        run()
        connection_created.disconnect(note)
        self.assertEqual([one.connection for one in made], [None])
        result.refresh()
        self.assertEqual(result.return_value, "lamp", result.errors)
        order.refresh_from_db()
        self.assertEqual(order.state, "shipped")

    def test_signals(self):
        seen = []

        def note(signal):
            def noted(sender, task_result, **others):
                seen.append((signal, sender.__name__, task_result.status))

            return noted

        receivers = {name: note(name) for name in ("task_enqueued", "task_started", "task_finished")}
        for name, receiver in receivers.items():
            getattr(signals, name).connect(receiver)
        second = own.second_time.enqueue()
        run()
        run(now=time.time() + 60)
        own.fails.enqueue("fail")
        with self.assertLogs(level="ERROR") as logged:
            run()
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
        backend = "TasksBackend"
        self.assertEqual(
            seen,
            [
                ("task_enqueued", backend, "READY"),
                ("task_started", backend, "RUNNING"),
                ("task_started", backend, "RUNNING"),  # the first attempt has not finished the task
                ("task_finished", backend, "SUCCESSFUL"),
                ("task_enqueued", backend, "READY"),
                ("task_started", backend, "RUNNING"),
                ("task_finished", backend, "FAILED"),
            ],
        )
        self.assertIn("Fail: no", logged.output[0])
        second.refresh()
        self.assertEqual(second.return_value, 2)


class InTestCases(TestCase):
    def test_a_task_can_be_enqueued_and_looked_at_inside_of_a_test_case(self):
        result = own.ship.enqueue(1)
        self.assertEqual(own.ship.get_result(result.id), result)


class Configuration(TransactionTestCase):
    def problems(self, **options):
        backend = type(tasks.task_backends["default"])("default", {"OPTIONS": options, "QUEUES": ["default", "mail"]})
        return [(one.id, one.msg) for one in backend.check()]

    def test_the_project_is_in_order(self):
        self.assertEqual(self.problems(), [])

    def test_what_is_wrong_is_named(self):
        for options, words in (
            ({"databse": "default"}, "'databse' is not an option; there are database, type, url"),
            ({"database": "nowhere"}, "DATABASES has no 'nowhere'"),
            ({"type": "a b"}, "'a b' is not a valid type"),
            ({"url": "mysql://x"}, "url: .* is not an SQLite or PostgreSQL URL"),
        ):
            [(number, message)] = self.problems(**options)
            self.assertEqual(number, "supervisor.E001")
            self.assertIn('TASKS["default"]: ', message)
            self.assertRegex(message, words)

    def test_transactions_that_would_fail_are_named(self):
        with mock.patch.dict(connections["default"].settings_dict, OPTIONS={}):
            self.assertEqual([number for number, _ in self.problems()], ["supervisor.W001"])

    def test_a_database_in_memory_is_refused_with_what_to_do(self):
        for name in (":memory:", "file:memorydb_default?mode=memory&cache=shared"):
            with mock.patch.dict(connections["default"].settings_dict, NAME=name):
                with self.assertRaisesMessage(ImproperlyConfigured, "ImmediateBackend"):
                    own.ship.enqueue(1)

    def test_migrations_leave_the_tables_alone(self):
        from django.core.management import call_command

        result = own.ship.enqueue(1)
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
        call_command("migrate", verbosity=0)
        call_command("migrate", "orders", "zero", verbosity=0)
        call_command("migrate", verbosity=0)
        self.assertEqual(own.ship.get_result(result.id), result)

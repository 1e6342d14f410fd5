"""`jobs`: what people see, and what they may change."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor import Queue

from .conftest import COMMAND, Run, execute

Make = Callable[..., list[int]]


@pytest.fixture
def put(cli: Run, database: Path) -> Make:
    """Enqueues a job for each status named, and puts it there as a foreign program may."""

    def make(*statuses: str) -> list[int]:
        ids = []
        for status in statuses:
            if status == "held":
                held = "INSERT INTO jobs (type, status, hold) VALUES ('greet', 'held', 'after') RETURNING id"
                ids.append(execute(database, held)[0][0])
                continue
            [job_id] = [int(cli("enqueue", "greet", '{"n": 1}').out)]
            if status != "pending":
                execute(database, "UPDATE jobs SET status = ? WHERE id = ?", status, job_id)
            ids.append(job_id)
        return ids

    return make


def statuses(database: Path) -> list[str]:
    return [row[0] for row in execute(database, "SELECT status FROM jobs ORDER BY id")]


def test_the_latest_jobs_come_first_and_the_way_to_older_ones_is_shown(cli: Run, put: Make) -> None:
    put("pending", "failed", "done")

    listed = cli("jobs", "list", "--limit", "2")

    assert [line.split()[:3] for line in listed.out.splitlines()[1:3]] == [
        ["3", "greet", "done"],
        ["2", "greet", "failed"],
    ]
    assert listed.out.splitlines()[3] == "older jobs: --before 2"
    assert [job["id"] for job in cli("jobs", "list", "--before", "2", "--json").document] == [1]
    assert [job["id"] for job in cli("jobs", "list", "--status", "failed", "--json").document] == [2]
    assert cli("jobs", "list", "--type", "other").out == "no jobs\n"


def test_the_error_of_a_job_that_runs_again_is_that_of_its_previous_attempt(
    cli: Run, put: Make, database: Path
) -> None:
    put("running", "failed")
    execute(database, "UPDATE jobs SET last_error = 'no disk'")

    failed, running = cli("jobs", "list").out.splitlines()[1:3]

    assert running.endswith("; previous attempt: no disk")
    assert failed.split()[-2:] == ["no", "disk"]
    assert "previous" not in failed


def test_what_other_programs_have_stored_cannot_harm_a_terminal_or_a_reader(
    cli: Run, put: Make, database: Path
) -> None:
    put("pending", "failed", "done")
    execute(
        database,
        "UPDATE jobs SET payload = CAST(x'ff1b5b324a' AS TEXT), last_error = char(27) || '[2J' || char(10), "
        "unique_key = CAST(x'fe' AS TEXT), created_at = 'yesterday', updated_at = x'ff', completed_at = 1e300",
    )
    execute(database, "UPDATE jobs SET result = ? WHERE id = 3", "[" * 5000 + "]" * 5000)
    execute(database, "UPDATE jobs SET result = '[NaN, Infinity]' WHERE id = 2")
    execute(database, "UPDATE jobs SET result = ? WHERE id = 1", "[" * 500 + "]" * 500)

    shown = [cli("jobs", "list"), *(cli("jobs", "show", number) for number in (1, 2, 3))]

    assert all(ran.code == 0 and "\x1b" not in ran.out for ran in shown)
    listed = cli("jobs", "list", "--json")
    assert [job["id"] for job in listed.document] == [3, 2, 1]
    assert "NaN" not in cli("jobs", "show", 2, "--json").out.replace('"nan"', "")
    assert cli("jobs", "show", 1, "--json").document["id"] == 1


def test_a_job_is_shown_with_its_timeline_and_every_failed_attempt(cli: Run, put: Make, database: Path) -> None:
    put("failed")
    execute(database, "UPDATE jobs SET created_at = 1000, scheduled_at = 1010, started_at = 1012")
    execute(database, "UPDATE jobs SET completed_at = 1015.5")
    execute(
        database,
        "INSERT INTO job_errors (job_id, attempt, kind, message, traceback, stderr, worker, duration, "
        "created_at) VALUES (1, 1, 'exception', 'boom', ?, 'said', 'greet-1', 3.5, 1015.5)",
        "Traceback:\n  line [bold]\x1b[31m\nValueError: boom",
    )

    shown = cli("jobs", "show", "1")

    assert timeline(shown.out) == [
        "– created",
        "+10s due",
        "+2s attempt 1 started in greet-1",
        "+3.5s attempt 1 ended: exception",
        "+0ms failed",
    ]
    assert "Attempt 1, 1970-01-01 00:16:52Z in greet-1\nattempt 1 ended after 3.5s: exception\n" in shown.out
    # Indented: no line of a handler's looks like one of ours.
    assert "line [bold]\\x1b[31m\n  ValueError: boom\nstderr:\n  said" in shown.out
    document = cli("jobs", "show", "1", "--json").document
    assert [error["message"] for error in document["errors"]] == ["boom"]


def test_what_decides_when_a_job_may_run_is_shown_if_it_is_set(cli: Run, put: Make, database: Path) -> None:
    plain, held, passed = put("pending", "held", "pending")
    execute(database, "UPDATE jobs SET batch = 8, concurrency_key = 'user 7', fair_key = 'ada' WHERE id > 1")
    execute(database, "UPDATE jobs SET hold = 'after' WHERE id = ?", held)
    execute(database, "UPDATE jobs SET status = 'pending', hold = '', claim_token = 7 WHERE id = ?", passed)
    execute(database, "INSERT INTO job_after (after_id, job_id) VALUES (?, ?), (?, ?)", plain, held, passed, held)

    def shown(job: int) -> str:
        return " ".join(cli("jobs", "show", str(job)).out.split())

    assert " gate after after 1, 3 batch 8 priority " in shown(held)
    assert " concurrency key user 7 fair key ada progress " in shown(held)
    assert " status pending waits " in shown(passed)
    assert not [
        word for word in (" gate ", " after ", " batch ", " key user") if word in shown(plain).partition("Time")[0]
    ]
    assert "gate" not in shown(passed)
    document = cli("jobs", "show", str(held), "--json").document
    names = ("hold", "after", "batch", "concurrency_key", "fair_key")
    assert [document[name] for name in names] == ["after", [1, 3], 8, "user 7", "ada"]


def test_why_a_job_does_not_run_is_told_with_what_helps(cli: Run, put: Make, database: Path) -> None:
    waiting, failed, held = put("pending", "failed", "held")
    cli("pause", "greet", "--force")
    execute(database, "INSERT INTO job_limits (type, per_key) VALUES ('greet', 0)")
    execute(database, "UPDATE jobs SET concurrency_key = 'a' WHERE id = ?", held)
    execute(database, "UPDATE jobs SET hold = 'key' WHERE id = ?", held)
    nobody = [
        "the type greet is paused", "→ `supervisor resume greet` resumes it",
        "no supervisor is running", "→ `supervisor run` starts one",
    ]  # fmt: skip

    assert cli("jobs", "why", str(waiting)).out.splitlines() == ["job 1 (greet) is pending", *nobody]
    assert cli("jobs", "why", str(held)).out.splitlines() == [
        "job 3 (greet) is held", "its concurrency key a has no room", *nobody
    ]  # fmt: skip
    told = cli("jobs", "why", str(failed), "--json").document
    [reason] = told.pop("reasons")
    assert (told, reason["code"]) == ({"id": failed, "type": "greet", "status": "failed"}, "failed")
    assert reason.keys() == {"code", "text", "advice", "until", "jobs"}
    assert "the type greet is paused; `supervisor resume greet`" in " ".join(cli("jobs", "show", str(held)).out.split())
    assert cli("jobs", "show", str(failed), "--json").document["waits"] is None
    assert (cli("jobs", "why", "4").code, cli("jobs", "why", "4").errors()) == (1, ["no job has the id 4"])

    assert cli("jobs", "run-now", str(held)).out.splitlines() == ["job 3 (greet) is pending", *nobody]
    assert execute(database, "SELECT status, hold FROM jobs WHERE id = ?", held) == [("pending", "")]
    assert cli("jobs", "run-now", str(held), "--json").document["reasons"][0]["code"] == "paused"
    refused = cli("jobs", "run-now", str(failed))
    assert (refused.code, refused.errors()) == (
        4, ["job 2 is failed; only a job that waits can be run now; retry it"]
    )  # fmt: skip
    assert cli("jobs", "run-now", "4").errors() == ["no job has the id 4"]


def test_held_jobs_have_a_column_where_there_are_any(cli: Run, put: Make) -> None:
    put("pending", "held", "held")
    shown = cli("status").out
    assert "\n1 pending, 2 held (2 after)\n" in shown
    assert re.search(r"^TYPE +PENDI\S+ +HELD +RUNNING .*\ngreet +1 +2 +0 ", shown, re.MULTILINE)
    cli("jobs", "cancel", "--all", "--status", "held", "--yes")
    assert "HELD" not in cli("status").out


def test_times_are_in_utc_as_in_the_logs_of_runs(
    cli: Run, put: Make, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = put("done")
    execute(database, "UPDATE jobs SET created_at = 1000.0")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert "1970-01-01 00:16:40Z" in cli("jobs", "show", job).out
    finally:
        monkeypatch.undo()
        time.tzset()


def timeline(text: str) -> list[str]:
    lines = text.partition("EVENT\n")[2].partition("\n\n")[0].splitlines()
    return [" ".join(line.split()[2:]) for line in lines]


def test_nothing_comes_after_a_jobs_end(cli: Run, put: Make, database: Path) -> None:
    put("cancelled")
    execute(database, "UPDATE jobs SET created_at = 1000, scheduled_at = 9e9, completed_at = 1001")
    assert timeline(cli("jobs", "show", "1").out) == ["– created", "+1s cancelled"]


def test_each_attempt_has_its_place_in_the_timeline(cli: Run, put: Make, database: Path) -> None:
    """Due again after the first attempt, and done by a second one too short for a row of its own."""
    put("done")
    times = "created_at = 1000, scheduled_at = 1010, started_at = 1011, completed_at = 1012"
    execute(database, f"UPDATE jobs SET {times}, attempts = 2")
    sql = "INSERT INTO job_errors (job_id, attempt, kind, message, duration, created_at) VALUES (1, 1, ?, 'm', 2, 1005)"
    execute(database, sql, "timeout")
    told = ["+3s attempt 1 started", "+2s attempt 1 ended: timeout", "+5s due", "+1s attempt 2 started", "+1s done"]
    assert timeline(cli("jobs", "show", "1").out) == ["– created", *told]


LOGS = ["tagging\n", None, "".join(f"line {number}\n" for number in range(50)) + "\x1b[2Jdone: 10%\r 100%\r\n"]


@pytest.fixture
def with_runs(put: Make, database: Path) -> None:
    """A job that has run three times."""
    put("done")
    for number, log in enumerate(LOGS, 1):
        execute(
            database,
            "INSERT INTO job_runs VALUES (1, ?, ?, ?, 'greet-1', 1008 + 4 * ?, 3.5, 0.0125, 67108864, ?)",
            *(number, number, "done" if number == 3 else "exception", number, log),
        )


def test_a_job_is_shown_with_what_its_runs_have_used_and_the_end_of_the_last_log(cli: Run, with_runs: None) -> None:
    shown = cli("jobs", "show", "1").out

    rows = [line.split() for line in shown.partition("\nRuns\n")[2].splitlines()[:4]]
    assert rows[0] == ["ATTEMPT", "WORKER", "STARTED", "TOOK", "CPU", "PEAK", "MEMORY", "OUTCOME"]
    assert [(row[0], row[1], *row[4:]) for row in rows[1:]] == [
        ("1", "greet-1", "3.5s", "12ms", "64MiB", "exception"),
        ("2", "greet-1", "3.5s", "12ms", "64MiB", "exception"),
        ("3", "greet-1", "3.5s", "12ms", "64MiB", "done"),
    ]
    heading, first, *said, end = shown.partition("\nAttempt ")[2].splitlines()
    assert heading.startswith("3, ")
    assert first == "  (31 earlier lines: supervisor logs 1)"
    assert said == [*(f"  line {number}" for number in range(31, 50)), "   100%"]
    assert end == "attempt 3 ended after 3.5s: done"
    assert "tagging" not in shown


def test_the_runs_of_a_job_are_given_to_programs_whole(cli: Run, with_runs: None) -> None:
    runs = cli("jobs", "show", "1", "--json").document["runs"]

    assert [run["log"] for run in runs] == LOGS
    assert (runs[0]["outcome"], runs[0]["cpu_time"], runs[0]["peak_memory"]) == ("exception", 0.0125, 64 << 20)


def test_retry_resets_the_counters_of_the_jobs_named(cli: Run, put: Make, database: Path) -> None:
    put("failed", "quarantined", "cancelled", "failed")
    execute(database, "UPDATE jobs SET attempts = 5, crashes = 3")
    ran = cli("jobs", "retry", "1", "2", "3", "3", "--yes")
    assert (ran.code, ran.out) == (0, "3 jobs pending again\n")
    rows = execute(database, "SELECT status, attempts, crashes FROM jobs ORDER BY id")
    assert rows == [("pending", 0, 0)] * 3 + [("failed", 5, 3)]


def test_a_done_job_runs_again_only_with_an_option_that_the_error_names(cli: Run, put: Make, database: Path) -> None:
    put("done", "failed", "done", "pending")
    execute(database, "UPDATE jobs SET result = '7' WHERE status = 'done'")

    refused = cli("jobs", "retry", "1", "2", "--yes")
    assert (refused.code, refused.errors()) == (
        4,
        ["job 1 is done; only with `--done` it runs again, and its result is deleted"],
    )
    assert "`--done`" not in cli("jobs", "retry", "4").err
    assert cli("jobs", "retry", "2", "4", "--done", "--yes").code == 4
    assert statuses(database) == ["done", "failed", "done", "pending"]

    assert cli("jobs", "retry", "1", "2", "--done", "--yes").out == "2 jobs pending again\n"
    assert execute(database, "SELECT status, result FROM jobs WHERE id < 4 ORDER BY id") == [
        ("pending", None),
        ("pending", None),
        ("done", "7"),
    ]
    assert cli("jobs", "retry", "--all", "--status", "failed", "--done").code == 2


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("retry", "pending"),
        ("retry", "running"),
        ("retry", "done"),
        ("cancel", "done"),
        ("cancel", "failed"),
        ("delete", "pending"),
        ("delete", "running"),
    ],
)
def test_a_job_in_another_state_is_a_conflict_and_all_are_left_alone(
    cli: Run, put: Make, database: Path, command: str, state: str
) -> None:
    fitting = {"retry": "failed", "cancel": "pending", "delete": "done"}[command]
    put(fitting, state)

    ran = cli("jobs", command, "1", "2", "--yes")

    assert ran.code == 4
    [error] = ran.errors()
    assert error.startswith(f"job 2 is {state}; only ")
    assert statuses(database) == [fitting, state]


def test_a_retry_whose_unique_key_is_taken_is_a_conflict(cli: Run, database: Path) -> None:
    cli("enqueue", "greet", "--unique-key", "k")
    execute(database, "UPDATE jobs SET status = 'failed'")
    cli("enqueue", "greet", "--unique-key", "k")
    cli("enqueue", "greet")
    taken = "the unfinished job 2 has the unique key of job 1"

    by_id = cli("jobs", "retry", "1")
    assert (by_id.code, by_id.errors()) == (4, [f"job 1 was not retried: {taken}"])
    execute(database, "UPDATE jobs SET status = 'failed' WHERE id = 3")
    by_ids = cli("jobs", "retry", "1", "3", "--yes", "--json")
    assert (by_ids.code, by_ids.document) == (4, {"retried": 1, "skipped": 0, "duplicates": 1})
    assert by_ids.errors() == [f"1 of 2 jobs were not retried: {taken}"]
    execute(database, "UPDATE jobs SET status = 'failed' WHERE id = 3")
    by_status = cli("jobs", "retry", "--all", "--status", "failed", "--yes")
    assert by_status.code == 0
    assert by_status.out == "1 job pending again, 1 not retried because unfinished jobs have their unique keys\n"


def test_cancel_ends_pending_jobs_and_asks_running_ones_to_stop(cli: Run, put: Make, database: Path) -> None:
    put("pending", "running")

    ran = cli("jobs", "cancel", "1", "2", "--yes", "--json")

    assert ran.document == [{"id": 1, "status": "cancelled"}, {"id": 2, "status": "running"}]
    [row] = execute(database, "SELECT status, cancel_requested_at > 0 FROM jobs WHERE id = 2")
    assert row == ("running", 1)


@pytest.mark.parametrize(
    ("arguments", "changed", "left"),
    [
        (["cancel"], 3, "cancelled asked failed done cancelled"),
        (["cancel", "--type", "greet"], 2, "cancelled asked failed done pending"),
        (["cancel", "--status", "pending"], 2, "cancelled running failed done cancelled"),
        (["cancel", "--status", "running"], 1, "pending asked failed done pending"),
        (["delete", "--status", "failed"], 1, "pending running done pending"),
        (["retry", "--status", "failed"], 1, "pending running pending done pending"),
        (["retry", "--status", "failed", "--type", "other"], 0, "pending running failed done pending"),
    ],
)
def test_a_change_of_all_takes_those_meant_alone(
    cli: Run, put: Make, database: Path, arguments: list[str], changed: int, left: str
) -> None:
    put("pending", "running", "failed", "done", "pending")
    execute(database, "UPDATE jobs SET type = 'other' WHERE id = 5")
    done = {"cancel": "cancelled", "delete": "deleted", "retry": "retried"}[arguments[0]]
    document = cli("jobs", *arguments, "--all", "--yes", "--json").document
    assert (document[done], document["skipped"]) == (changed, 0)
    asked = "status = 'running' AND cancel_requested_at IS NOT NULL"
    rows = execute(database, f"SELECT CASE WHEN {asked} THEN 'asked' ELSE status END FROM jobs ORDER BY id")
    assert " ".join(row[0] for row in rows) == left


MANY = {
    "retry": ["jobs", "retry", "1", "2"],
    "retry all": ["jobs", "retry", "--all", "--status", "failed"],
    "delete": ["jobs", "delete", "1", "2"],
    "delete all": ["jobs", "delete", "--all", "--status", "failed"],
    "purge": ["purge", "--older-than", "0s"],
}


@pytest.mark.parametrize("arguments", MANY.values(), ids=MANY)
def test_many_jobs_are_not_changed_by_a_script_without_yes(
    cli: Run, put: Make, database: Path, arguments: list[str]
) -> None:
    put("failed", "failed")

    ran = cli(*arguments)

    assert ran.code == 2
    [error] = ran.errors()
    assert "2 jobs" in error
    assert "--yes" in ran.err
    assert statuses(database) == ["failed", "failed"]
    assert cli(*arguments, "--yes").code == 0
    assert statuses(database) != ["failed", "failed"]


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 2)])
def test_at_a_terminal_it_asks_before_many_jobs_are_changed(
    put: Make, database: Path, answer: str, code: int, left: int
) -> None:
    put("failed", "failed")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [COMMAND, "jobs", "delete", "1", "2"], cwd=database.parent, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        while b"delete 2 jobs?" not in said:
            said += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(timeout=30) == code
    with suppress(OSError):  # the end of a terminal whose program has ended
        while True:
            said += os.read(ours, 4096)
    os.close(ours)
    assert len(statuses(database)) == left
    assert (b"nothing was changed" in said) == (left == 2)
    assert b"error:" not in said


def test_purge_deletes_what_finished_long_ago_in_the_states_given(cli: Run, put: Make, database: Path) -> None:
    put("done", "done", "failed", "pending")
    execute(database, "UPDATE jobs SET completed_at = 1000 WHERE id IN (1, 3)")

    assert cli("purge", "--older-than", "7d", "--status", "done", "--json").document == {"deleted": 1}
    assert statuses(database) == ["done", "failed", "pending"]
    assert cli("purge", "--older-than", "7d").out == "1 job deleted\n"
    assert statuses(database) == ["done", "pending"]


TASKS = """
from supervisor import task

@task(timeout="30s", max_attempts=3, retry={"backoff": "fixed", "base": "10s"}, give_up_on=["KeyError", "OSError"])
def tag(path): ...

@task
def plain(path): ...
"""


def test_the_limits_of_a_job_are_shown_wherever_they_come_from(cli: Run, project: Path) -> None:
    (project / "tags.py").write_text(TASKS)
    (project / "supervisor.toml").write_text(
        '[pools.tags]\ntasks = ["tags"]\n'
        '[pools.gpu]\nhandler = "jobs:greet"\ntypes = ["plain"]\ncapabilities = ["gpu"]\n'
        'timeout = "1h"\n[types.plain]\nmax_attempts = 1\n'
    )
    for arguments in (["tag"], ["tag", "--max-attempts", "7"], ["plain"], ["plain", "--requires", "gpu"], ["other"]):
        cli("enqueue", *arguments)

    shown = [" ".join(cli("jobs", "show", str(n)).out.split()) for n in range(1, 6)]  # long lines are wrapped

    policy = "fixed backoff of 10s, gives up on KeyError, OSError"
    assert f"attempts 0 of 3 limits 30s a run, 3 attempts, {policy} crashes" in shown[0]
    assert f"attempts 0 of 7 limits 30s a run, 7 attempts, {policy} crashes" in shown[1]
    assert "limits in tags: 2m a run, 1 attempt; in gpu: 60m a run, 1 attempt crashes" in shown[2]
    assert "limits 60m a run, 1 attempt crashes" in shown[3]
    assert "attempts 0 crashes" in shown[4]
    assert "crashes 0 unique" in shown[0]
    execute(project / "jobs.db", "UPDATE jobs SET crashes = 2")
    shown = [" ".join(cli("jobs", "show", str(n)).out.split()) for n in (1, 5)]
    assert ["crashes 2 of 3 " in each for each in shown] == [True, False]
    [limits] = cli("jobs", "show", "1", "--json").document["limits"]
    assert (limits["pool"], limits["timeout"], limits["retry"]["max_attempts"]) == ("tags", 30.0, 3)
    assert cli("jobs", "show", "5", "--json").document["limits"] == []

    (project / "supervisor.toml").write_text("[pools.tags]\nnonsense = 1\n")
    alone = cli("--database", f"sqlite:///{project}/jobs.db", "jobs", "show", "1")
    assert (alone.code, "limits" in alone.out) == (0, False)


def test_a_batch_is_shown_listed_closed_and_cancelled(cli: Run, put: Make, database: Path) -> None:
    put("pending")
    with Queue(f"sqlite:///{database}") as queue:
        batch = queue.batches.open("report")
        ids = queue.enqueue_many("greet", [{}, {}, {}], batch=batch)
    execute(database, "UPDATE jobs SET status = 'done' WHERE id = ?", ids[0])

    assert cli("jobs", "batch").out.splitlines()[1].split()[:5] == [str(batch), "open", "2", "1", "0"]
    assert "\n→ nothing follows an open batch; " in cli("jobs", "batch", batch).out
    assert [job["id"] for job in cli("jobs", "list", "--batch", batch, "--json").document] == ids[::-1]
    assert cli("jobs", "cancel", 1, "--batch", batch).errors() == ["give either ids or --batch, not both"]
    assert cli("jobs", "delete", "--batch", batch).err.startswith("error: --batch needs --status: done")
    assert cli("jobs", "cancel", "--batch", batch, "--yes").out == "2 jobs cancelled, or asked to stop\n"
    assert statuses(database) == ["pending", "done", "cancelled", "cancelled"]
    assert cli("jobs", "batch", batch, "--json").document["callback"] is None
    closed = cli("jobs", "batch", batch, "--close", "--json").document
    assert (closed["state"], closed["callback"], closed["counts"]["cancelled"]) == ("ended", 5, 2)
    assert cli("jobs", "batch", batch).out.endswith("report (job 5)\n")
    assert cli("jobs", "retry", "--batch", batch, "--status", "quarantined", "--yes").out.startswith("0 jobs")
    assert cli("jobs", "batch").out == "all batches have ended\n"
    assert cli("jobs", "batch", 7).errors() == ["no batch has the id 7"]
    assert cli("jobs", "batch", "--close").code == 2

"""`init`, `check`, `doctor`, `migrate`, `backup` and the steering commands, without a supervisor."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.cli import status as status_command
from supervisor.domain.job import Status
from supervisor.ops.doctor import machine
from tests.samples import sampled

from .conftest import CONFIGURATION, Run, command, execute
from .test_top_screen import overview, pool


def test_init_beside_code_in_src_names_the_page_for_it(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    assert "src/" not in cli("init", "elsewhere").out
    (tmp_path / "pyproject.toml").touch()
    assert cli("init").out.endswith("for code in src/, docs/your-project.md says what belongs in supervisor.toml\n")


def test_init_writes_a_starter_that_checks_and_refuses_to_do_it_twice(cli: Run, tmp_path: Path) -> None:
    assert cli("init").code == 0
    assert cli("check").out == f"supervisor.toml: OK; pools: default; database: sqlite:///{tmp_path}/app.db\n"

    again = cli("init")

    assert (again.code, len(again.errors())) == (4, 1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["jobs.py", "supervisor.toml"]


def test_without_time_zones_utc_remains_and_of_others_is_said_what_to_install(project: Path) -> None:
    hidden = "import sys; sys.modules['tzdata'] = None; from supervisor.cli import main; sys.exit(main())"
    schedule = "[[schedules]]\nname = 'x'\ntype = 'greet'\ncron = '0 3 * * *'\n"
    outputs, listed = {}, {}
    for zone in ("", "timezone = 'UTC'", "timezone = 'Europe/Berlin'"):
        (project / "supervisor.toml").write_text(f"{CONFIGURATION}{schedule}{zone}\n")
        environment = os.environ | {"PYTHONTZPATH": ""}
        check = [sys.executable, "-c", hidden, "check"]
        ran = subprocess.run(check, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
        outputs[zone] = (ran.returncode, ran.stdout + ran.stderr)
        enqueue = [*check[:-1], "enqueue", "greet"]  # which needs no zone
        listed[zone] = subprocess.run(enqueue, cwd=project, env=environment, capture_output=True, timeout=60).returncode
    code, told = outputs.pop("timezone = 'Europe/Berlin'")
    assert {code for code, _ in outputs.values()} == {0}, outputs
    assert code == 2
    assert "schedules[0].timezone: this machine has no time zones" in told
    assert "install the package tzdata" in told
    assert set(listed.values()) == {0}


ODD = """
def noctx(payload): ...
def three(payload, ctx, more): ...
def lazy(payload, ctx): yield 1
async def slow_lazy(payload, ctx): yield 1
class Setup:
    def setup(self): ...
    def handle(self, payload, ctx): ...
class Batch:
    def handle_batch(self, payloads): ...
def good(payload, ctx, more=None): ...
class Good(type('Base', (), {})):
    @staticmethod
    def handle(payload, ctx): ...
    def teardown(self, *rest): ...
def many(*arguments, **named): ...
builtin = max
class Callable:
    def __call__(self, payload, ctx): ...
Called = Callable()
"""
NAMES = ("noctx", "three", "lazy", "slow_lazy", "Setup", "Batch", "good", "Good", "many", "builtin", "Called")
MAIL = "[pools.mail]\nhandler = 'handlers.mail:send'\n"
FAULTS: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "of the file and of every handler at once": (
        "[pools.a]\nhandler = 'jobs:missing'\n[pools.b]\nhandler = 'nowhere:handle'\n"
        "[pools.c]\nhandler = 'broken:handle'\n[pools.d]\nhandler = 'deadly:handle'\nworker = 3\n"
        "[pools.e]\nhandler = 'jobs:greet'\n",
        {
            "broken.py": "import no_such_library\n",
            "deadly.py": "import os, sys\nsys.stderr.write('bye'); sys.stderr.flush()\nos.abort()\n",
        },
        [
            "supervisor.toml:2: pools.a.handler: jobs:missing: the module jobs has no 'missing'",
            "supervisor.toml:4: pools.b.handler: nowhere:handle: there is no module 'nowhere'",
            "no module named 'no_such_library'",
            "SIGABRT): bye",
            "supervisor.toml:9: pools.d.worker: ",
        ],
    ),
    "an import that never ends": (
        CONFIGURATION + "startup_timeout = '500ms'\n",
        {"jobs.py": "import time\ntime.sleep(60)\n"},
        ["did not end within startup_timeout"],
    ),
    "payloads that tasks would refuse": (
        "[pools.tasks]\ntasks = ['jobs']\n[pools.other]\nhandler = 'jobs:other'\n"
        + "".join(
            f"[[schedules]]\nname = 's{n}'\ntype = '{type_}'\nevery = '1d'\npayload = {payload}\n"
            for n, (payload, type_) in enumerate(
                [("{ day = 1 }", "report"), ("{}", "report"), ("{ day = 1, too = 'me' }", "report"), ("{}", "other")]
            )
        ),
        {
            "jobs.py": "from supervisor import task\n@task\ndef report(day: int, to: str = 'all'): ...\n"
            "def other(payload, ctx): ...\n"
        },
        [
            "[1].payload: the task 'report' would refuse it: report: the parameter 'day' is missing in the payload",
            "schedules[2].payload: the task 'report' would refuse it: report: the task has no parameter 'too'",
        ],
    ),
    "a module that is missing": (
        "[pools.a]\ntasks = ['nowhere']\n",
        {},
        ["supervisor.toml:2: pools.a.tasks: there is no module 'nowhere'"],
    ),
    "options that a shipped handler does not know": (
        MAIL + "options = { host = 'mail' }\n"
        "[pools.m2]\nhandler = 'handlers.mail:send'\noptions = { hots = 'x', port = 0 }\n"
        "[pools.p]\nhandler = 'handlers.pictures:Pictures'\ntypes = ['tag']\noptions = { tag = { topk = 3 } }\n",
        {},
        [
            "supervisor.toml:6: pools.m2.options.port: must be at least 1, not 0",
            "supervisor.toml:6: pools.m2.options.hots: there is no such option; did you mean host?",
            "supervisor.toml:10: pools.p.options.tag.topk: there is no such option; did you mean top_k?",
        ],
    ),
    "what a set-up would miss": (
        "[pools.caption]\nhandler = 'handlers.caption:Captioner'\noptions = { model = '/nowhere/blip' }\n"
        "[pools.own]\nhandler = 'own:Own'\n",
        {
            "own.py": "class Own:\n    def handle(self, payload, ctx): ...\n"
            "    @staticmethod\n    def check_options(options): import no_such_library\n"
        },
        [
            "supervisor.toml:3: pools.caption.options.model: there is no folder /nowhere/blip",
            "supervisor.toml:5: pools.own.handler: No module named 'no_such_library'",
        ],
    ),
    "handlers that nobody could call": (
        "".join(f"[pools.{name.lower()}{i}]\nhandler='odd:{name}'\n" for i, name in enumerate(NAMES)),
        {"odd.py": ODD},
        [
            "odd:noctx: it must take (payload, ctx)",
            "odd:three: it must take (payload, ctx)",
            "odd:lazy: it is a generator; it must return its result instead of yielding it",
            "odd:slow_lazy: it is a generator; it must return its result instead of yielding it",
            "odd:Setup.setup: it must take (ctx)",
            "odd:Batch.handle_batch: it must take (payloads, ctx)",
        ],
    ),
    "an import that fails": (
        CONFIGURATION,
        {"jobs.py": "import helper\ndef greet(payload, ctx): ...\n", "helper.py": "x = 1\n1 / 0\n"},
        ["jobs:greet: importing it failed: ZeroDivisionError: division by zero ({}/helper.py:2)"],
    ),
    "a module that needs Django before it is set up": (
        CONFIGURATION,
        {"jobs.py": "class AppRegistryNotReady(Exception): ...\nraise AppRegistryNotReady('no apps yet')\n"},
        ['AppRegistryNotReady: no apps yet ({}/jobs.py:2); begin the module with "import django; django.setup()"'],
    ),
    "an own module that hides the shipped ones": (
        MAIL,
        {"handlers.py": ""},
        ["(handlers is {}/handlers.py, which hides the handlers of job-supervisor; rename that file"],
    ),
    "an own folder that hides the shipped ones": (
        MAIL,
        {"handlers/__init__.py": ""},
        ["(handlers is {}/handlers, which hides the handlers of job-supervisor; rename that folder"],
    ),
    "a mistyped module in an own folder": (
        MAIL.replace("mail:", "mial:"),
        {"handlers/__init__.py": ""},
        ["(looked in {} first)"],
    ),
}


@pytest.mark.parametrize(("text", "files", "told"), FAULTS.values(), ids=FAULTS)
def test_check_says_what_is_wrong_with_handlers(
    cli: Run, project: Path, text: str, files: dict[str, str], told: list[str]
) -> None:
    (project / "supervisor.toml").write_text(text)
    for name, content in files.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(content)
    ran = cli("check")
    assert ran.code == 2
    for error, expected in zip(ran.errors(), told, strict=True):
        assert expected.format(project) in error
    document = cli("check", "--json")
    assert (document.code, document.err, document.document["problems"]) == (2, "", ran.errors())


def test_check_warns_of_a_schedule_whose_jobs_nobody_takes(cli: Run, project: Path) -> None:
    with (project / "supervisor.toml").open("a") as file:
        file.write(
            "[[schedules]]\nname = 'nightly'\ntype = 'gret'\nevery = '1h'\n"
            "[[schedules]]\nname = 'daily'\ntype = 'greet'\nevery = '1d'\n"
        )
    ran = cli("check")
    sentence = "no pool takes the type gret of the schedule nightly; did you mean greet?"
    assert (ran.code, ran.out) == (0, f"supervisor.toml: OK; pools: greet; database: sqlite:///{project}/jobs.db\n")
    assert ran.err == f"warning: supervisor.toml: {sentence}\n"
    assert cli("check", "--json").document["warnings"] == [sentence]
    run = command("run", "--burst", "--pool", "greet", cwd=project)
    assert run.returncode == 0
    assert sentence in run.stderr


def test_check_and_run_refuse_a_program_that_is_not_there(cli: Run, project: Path) -> None:
    text = (project / "supervisor.toml").read_text()
    (project / "supervisor.toml").write_text(f"{text}[pools.tag]\ncommand = ['./tag', 'x']\n")
    missing = f"pools.tag.command: there is no program {project}/tag, or it is not executable"

    for words in (["check"], ["run"], ["run", "--pool", "tag"]):
        ran = cli(*words)
        assert (ran.code, ran.errors()) == (2, [f"supervisor.toml:8: {missing}"])
    assert not (project / "jobs.db").exists()
    assert (
        command("run", "--burst", "--pool", "greet", cwd=project).returncode == 0
    )  # who does not run it, need not have it
    assert cli("status").code == 0
    assert cli("check", "--json").document["problems"] == [f"supervisor.toml:8: {missing}"]


def test_check_imports_as_a_worker_would(cli: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the pool's environment, the configuration's folder first on the path, and not the current one."""
    (project / "elsewhere").mkdir()
    (project / "elsewhere" / "here_only.py").write_text("def handle(payload, ctx): ...\n")
    other = "env = { GREETING = 'Hello' }\n[pools.other]\nhandler = 'here_only:handle'\n"
    (project / "supervisor.toml").write_text(CONFIGURATION + other)
    (project / "jobs.py").write_text("import os\ngreet = {'Hello': print}[os.environ['GREETING']]\n")
    monkeypatch.chdir(project / "elsewhere")
    [error] = cli("check", "-c", "../supervisor.toml").errors()
    assert "pools.other.handler" in error


def test_the_doctor_is_content_with_a_fresh_project_and_names_faults_with_what_to_do(cli: Run, database: Path) -> None:
    ran = cli("doctor", "--json")

    assert (ran.code, ran.document["ok"]) == (0, True)
    levels = {finding["about"]: finding["level"] for finding in ran.document["findings"]}
    assert {"python", "sqlite", "names", "configuration", "memory", "file system"} <= levels.keys()
    assert levels["permissions"] == levels["database"] == levels["leftovers"] == "ok"
    assert cli("doctor").code == 0
    database.chmod(0o666)
    (database.parent / "jobs.db-supervisor" / "owner-gone.lock").touch()
    ran = cli("doctor", "--json")
    [fault] = [finding for finding in ran.document["findings"] if finding["level"] == "fault"]
    assert (ran.code, fault["about"]) == (1, "permissions")
    assert "chmod o-w" in fault["advice"]


def test_the_doctor_needs_neither_configuration_nor_database(cli: Run) -> None:
    assert cli("doctor", "--database", "sqlite:///nowhere/jobs.db").code == 1
    assert cli("doctor", "--database", "sqlite:///jobs.db").code == 0


def test_the_doctor_sees_another_program_s_table(cli: Run, database: Path) -> None:
    with closing(sqlite3.connect(database.with_name("app.db"))) as connection:
        connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")

    ran = cli("doctor", "--database", "sqlite:///app.db")

    assert ran.code == 1
    assert "supervisor adopt" in " ".join(ran.out.split())


MOUNTS = """/dev/sda / ext4 rw 0 0
proc /proc proc rw 0 0
nas:/x /srv/data nfs4 rw 0 0
nas:/x /mnt/my\\040data cifs rw 0 0
tmpfs /mnt/my\\040data tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/", "ext4"), ("/home/ada", "ext4"), ("/srv/data", "nfs4"), ("/srv/data/x", "nfs4"), ("/srv/database", "ext4"),
     ("/mnt/my data/jobs", "tmpfs")],
)  # fmt: skip
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert machine.kind_of(Path(folder), MOUNTS) == kind


def test_supervisord_in_the_same_environment_is_a_fault_at_start_too(
    cli: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = project / "site" / "supervisor-4.2.5.dist-info"
    theirs.mkdir(parents=True)
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.2.5\n")
    monkeypatch.syspath_prepend(str(project / "site"))

    assert cli("doctor").code == 1
    ran = cli("run", "--burst")
    assert ran.code == 2
    [error] = ran.errors()
    assert "pip uninstall supervisor" in error
    assert not (project / "jobs.db").exists()


def test_migrate_makes_the_tables_once(cli: Run, project: Path) -> None:
    assert cli("migrate", "--json").document["applied"] == [1]
    assert "up to date" in cli("migrate").out


def test_a_backup_never_overwrites_a_file(cli: Run, database: Path, project: Path) -> None:
    before = (project / "supervisor.toml").read_bytes()
    ran = cli("backup", "supervisor.toml")
    assert (ran.code, ran.errors()) == (4, ["supervisor.toml: already exists; a backup never overwrites a file"])
    assert (project / "supervisor.toml").read_bytes() == before


def test_only_finished_jobs_can_be_purged(cli: Run, database: Path) -> None:
    for status in Status:
        ran = cli("purge", "--older-than", "7d", "--status", status)
        assert ran.code == (0 if status.finished else 2), status
        assert f"<{'|'.join(status for status in Status if status.finished)}>" in cli("purge", "--help").out


def test_status_says_how_many_workers_are_leaving(capsys: pytest.CaptureFixture[str]) -> None:
    starting = pool("starting", size=2, target=1)  # a successor
    both = pool("both", size=2, target=1, leaving=1, spares=3)
    status_command._print(overview(pools=[starting, pool("leaving", size=2, target=2, leaving=1), both]))
    found = re.findall("^(starting|leaving|both) +(.+?)   ", capsys.readouterr().out, re.M)
    assert found == [
        ("starting", "2/1"),
        ("leaving", "2/2, 1 leaving"),
        ("both", "2/1, 1 leaving, 3 spare"),
    ]


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("enqueue", "enqueue [OPTIONS] TYPE [JSON]"),
        ("jobs retry", "jobs retry [OPTIONS] [ID]…"),
        ("jobs cancel", "jobs cancel [OPTIONS] [ID]…"),
        ("scale", "scale [OPTIONS] POOL N|auto"),
        ("init", "init [OPTIONS] [FOLDER]"),
    ],
)
def test_the_usage_is_what_one_types(cli: Run, words: str, usage: str) -> None:
    assert cli(*words.split(), "--help").out.splitlines()[0] == f"Usage: supervisor {usage}"


def test_version_and_help_answer_at_once(cli: Run) -> None:
    assert cli("--version").out.startswith("job-supervisor ")
    assert cli().out == cli("--help").out
    assert cli("jobs").out == cli("jobs", "-h").out


# The interpreter may lie where only root can read, so everything is imported before it becomes nobody.
AS_NOBODY = """
import os, sys
import supervisor.cli.steering, supervisor.ops.commands
from supervisor.cli import main
main(["enqueue", "greet", "--database", "sqlite:///nowhere.db"])
main(["jobs", "list", "--database", sys.argv[-1]])
sys.stderr.flush()
os.setuid(65534)
print("now", file=sys.stderr)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("arguments", "mode"),
    sampled(
        [
            *((["enqueue", "greet"], 0o444), (["pause", "greet"], 0o600), (["jobs", "cancel", "1"], 0o444)),
            *((["enqueue", "greet"], 0o600), (["pause", "greet"], 0o444), (["jobs", "cancel", "1"], 0o600)),
        ],
        quick=3,
    ),
)
def test_a_database_that_may_not_be_written_is_one_line(
    cli: Run, database: Path, mode: int, arguments: list[str]
) -> None:
    cli("enqueue", "greet")
    database.chmod(mode)
    for folder in (database.parent, *database.parent.parents[:-2]):
        folder.chmod(0o755)

    ran = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments, "--database", f"sqlite:///{database}"],
        # Measuring coverage would write, and complain, as nobody.
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.returncode == 3, ran
    [error] = ran.stderr.partition("now\n")[2].splitlines()
    assert error.startswith("error: ")
    assert execute(database, "SELECT status FROM jobs") == [("pending",)]


def test_the_installed_command_and_the_module_are_the_same(project: Path) -> None:
    module = subprocess.run([sys.executable, "-m", "supervisor", "check"], cwd=project, capture_output=True, text=True)
    assert module.stdout.startswith("supervisor.toml: OK; pools: greet; database: ")
    assert command("check", cwd=project).stdout == module.stdout

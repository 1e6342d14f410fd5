"""`[[alerts]]` in the configuration: what is accepted, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import load
from supervisor.config.settings import untaken
from supervisor.domain.alerts import Alert
from supervisor.domain.errors import ConfigError

POOLS = """
[pools.tag]
handler = "jobs:tag"
[pools.mail]
handler = "handlers.mail:send"
[[schedules]]
name = "nightly"
type = "tag"
every = "1d"
"""


def alerts(folder: Path, text: str) -> tuple[Alert, ...]:
    file = folder / "supervisor.toml"
    file.write_text(POOLS.replace('"1d"', '"24h"') + text)
    return load(file).alerts


def test_an_alert_as_documented(tmp_path: Path) -> None:
    written = '[[alerts]]\nwhen = "oldest_due > 5m"\nenqueue = "mail"\npayload = { to = "ops" }\nevery = "1h"\n'
    assert alerts(tmp_path, written + 'only = ["tag"]\n') == (
        Alert("oldest_due", 300.0, "mail", '{"to":"ops"}', 3600.0, ("tag",)),
    )
    [short] = alerts(tmp_path, '[[alerts]]\nwhen = "given_up"\nenqueue = "mail"\n')
    assert short == Alert("given_up", 0.0, "mail", "{}", 600.0)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('enqueue = "mail"', "alerts[0]: `when` is missing"),
        ('when = "given_up"', "alerts[0]: `enqueue` is missing"),
        ('when = "lost"\nenqueue = "mail"', "alerts[0].when: must be 'given_up', 'quarantined'"),
        ('when = "oldest_due"\nenqueue = "mail"', "or 'oldest_due > 5m', not 'oldest_due'"),
        ('when = "given_up > 5m"\nenqueue = "mail"', "alerts[0].when: must be"),
        ('when = "oldest_due > soon"\nenqueue = "mail"', "alerts[0].when: 'soon' is not a duration"),
        ('when = 5\nenqueue = "mail"', "alerts[0].when: must be"),
        ('when = "given_up"\nenqueue = "mail"\npayload = [1]', "alerts[0].payload: must be a table"),
        ('when = "given_up"\nenqueue = "mail"\npayload = { alert = 1 }', "alerts[0].payload.alert: this key is for"),
        ('when = "given_up"\nenqueue = "mail"\nevery = "10ms"', "alerts[0].every: '10ms' is out of range"),
        ('when = "pool_broken"\nenqueue = "mail"\nonly = ["tagg"]', "alerts[0].only: there is no pool 'tagg'"),
        ('when = "schedule_missed"\nenqueue = "mail"\nonly = ["x"]', "alerts[0].only: there is no schedule 'x'"),
        ('when = "given_up"\nenqueue = "mail"\ntype = "x"', "alerts[0].type: unknown key"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(tmp_path: Path, written: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        alerts(tmp_path, f"[[alerts]]\n{written}\n")
    assert any(problem in line for line in caught.value.problems), caught.value.problems


def test_two_that_say_the_same_would_be_one(tmp_path: Path) -> None:
    one = '[[alerts]]\nwhen = "given_up"\nenqueue = "mail"\n'
    with pytest.raises(ConfigError, match="another alert says the same"):
        alerts(tmp_path, one + one)


def test_a_type_that_no_pool_takes_is_a_warning(tmp_path: Path) -> None:
    alerts(tmp_path, '[[alerts]]\nwhen = "given_up"\nenqueue = "mial"\nonly = ["tagg"]\n')
    (_, first), (_, second) = untaken(load(tmp_path / "supervisor.toml"))
    assert first.startswith("no pool takes the type mial of the alert about given_up")
    assert second.startswith("no pool takes the type tagg that the alert about given_up is for")

"""The alerts and the dashboard that we ship ask for what is there, and say what to do."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.processes.test_history import HANDLERS, POOLS, work_off
from tests.site_under_test import Site, kill, site, wait_for
from tests.web.test_metrics import Scraper

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
SCRAPING = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
OF_PROMETHEUS = {"instance", "job"}  # labels that the scraper adds
METRIC = re.compile(r"\b(supervisor_\w+|up)\b(?!\s*\()(?:\{([^}]*)\})?")
BY = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + targets


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The labels of every sample of a real scrape, by its name."""
    with site(tmp_path_factory.mktemp("site"), POOLS, HANDLERS) as made:
        yield scraped(made)


def scraped(made: Site) -> dict[str, set[str]]:
    made.start()
    work_off(made)
    job = made.queue.enqueue("once")
    kill(made.running_pid(job))
    made.done(job)
    made.queue.enqueue("once", after=[made.queue.enqueue("once", delay="1d")])  # held
    # A table that was planned is enough for a schedule to be seen.
    made.rows("INSERT INTO job_schedules (name, timing, next_at) VALUES ('nightly', '[]', 1)")
    with contextlib.closing(Scraper(made.url)) as scraper:
        wait_for(lambda: scraper.samples().get("supervisor_worker_restarts_total"), "the bulletin")
        families = text_string_to_metric_families(scraper.get().text)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_metric_that_is_asked_for_exists_with_the_labels_that_it_is_asked_by(labels: dict[str, set[str]]) -> None:
    assert len(expressions()) > 40
    for expression in expressions():
        found = METRIC.findall(expression)
        assert found, expression
        known = set(OF_PROMETHEUS)
        for name, selectors in found:
            assert name == "up" or name in labels, expression
            own = labels.get(name, set()) | OF_PROMETHEUS
            assert set(re.findall(r"(\w+)\s*[=!]", selectors)) <= own, expression
            known |= own
        for names in BY.findall(expression):
            assert {name.strip() for name in names.split(",")} <= known, expression


def test_every_metric_that_we_have_is_drawn_or_watched_or_only_of_use_by_hand(labels: dict[str, set[str]]) -> None:
    asked = {name for expression in expressions() for name, _ in METRIC.findall(expression)}
    unused = {name for name in labels if not name.endswith(("_sum", "_count"))} - asked
    assert unused == {"supervisor_build_info", "supervisor_host_workers"}


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 15
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
        assert set(rule["annotations"]) == {"summary", "description"}, rule
        assert not rule["annotations"]["summary"].endswith("."), rule
        assert rule["annotations"]["description"].endswith("."), rule


def test_every_command_that_an_alert_names_exists() -> None:
    from tests.docs.test_reference import commands, options_of, resolve

    told = " ".join(rule["annotations"]["description"] for rule in rules())
    named = re.findall(r"`(supervisor [^`]+)`", told)
    assert named
    for line in named:
        found = resolve(re.sub(r"\{\{.*?\}\}", "tag", line).split()[1:])
        assert found is not None
        name, rest = found
        assert {word for word in rest if word.startswith("--")} <= options_of(commands()[name]), line


def test_every_panel_has_a_description_a_place_and_the_readers_data_source() -> None:
    seen: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & seen, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        seen |= cells
    identities = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(identities) == len(set(identities))


def test_the_sample_scrapes_with_a_token_file_and_loads_the_alerts() -> None:
    document = yaml.safe_load(SCRAPING.read_text())
    [job] = document["scrape_configs"]
    assert job["job_name"] == "job-supervisor"
    assert 'up{job="job-supervisor"}' in ALERTS.read_text()
    assert job["authorization"]["credentials_file"]
    assert job.get("metrics_path", "/metrics") == "/metrics"
    assert document["rule_files"]


@pytest.mark.parametrize("arguments", [["check", "rules", str(ALERTS)], ["test", "rules", "tests/web/alerts_test.yml"]])
def test_prometheus_accepts_the_alerts_and_they_fire_when_they_should(arguments: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is needed: Debian's package prometheus has it")
    ended = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, cwd=DEPLOY.parent)
    assert ended.returncode == 0, ended.stdout + ended.stderr

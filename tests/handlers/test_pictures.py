"""handlers.pictures: three models behind one handler, chosen by the job's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from handlers.caption import Captioner
from handlers.nsfw import NsfwClassifier
from handlers.pictures import Pictures
from handlers.tag import Tagger
from supervisor import Fail
from supervisor.system.slot import State
from tests.site_under_test import Site, kill, wait_for

Contexts = Callable[..., Any]
Sample = Callable[[str], str]
OPTIONS: dict[str, dict[str, Any]] = {
    "tag": {"top_k": 1, "threshold": 0.1},
    "caption": {"method": "template", "top_k": 2},
    "nsfw": {"threshold": 0.01},
}


def test_each_type_gets_what_its_own_handler_finds(ml: None, context: Contexts, sample: Sample) -> None:
    pictures = Pictures()
    pictures.setup(context(**OPTIONS))
    payload = {"path": sample("coffee.png")}
    for type, alone in (("tag", Tagger()), ("caption", Captioner()), ("nsfw", NsfwClassifier())):
        alone.setup(context(**OPTIONS[type]))
        ctx = context()
        ctx.type = type
        assert pictures.handle(payload, ctx) == alone.handle(payload, context())
    pictures.teardown(context())


def test_a_type_without_a_model_fails_for_good(context: Contexts) -> None:
    ctx = context()
    ctx.type = "translate"
    with pytest.raises(Fail, match="for jobs of type translate; the types are tag, caption, nsfw"):
        Pictures().handle({"path": "cat.jpg"}, ctx)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tags": {}}, "tags: "),
        ({"threshold": 0.2}, "threshold: "),
        ({"tag": {"threshold": 2}}, r"tag\.threshold: "),
        ({"caption": {"method": "guess"}}, r"caption\.method: "),
        ({"nsfw": 0.5}, "nsfw: "),
    ],
)
def test_an_option_that_is_wrong_stops_the_set_up(context: Contexts, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=rf"options\.{fault}") as caught:
        Pictures().setup(context(**options))
    assert "\n" not in str(caught.value)


def test_without_a_captioning_model_it_says_what_to_write(ml: None, context: Contexts) -> None:
    with pytest.raises(ValueError, match=r"options\.caption: the caption handler has no model: set options"):
        Pictures().setup(context())


POOL = """
[pools.pictures]
handler = "handlers.pictures:Pictures"
types = ["tag", "caption", "nsfw"]
workers = 2
preload_setup = {before}
options = {{ caption = {{ method = "template" }} }}
"""


def ready(site: Site, without: int = 0) -> list[int]:
    """The pids of the two workers, once both are ready and neither is the one that was killed."""

    def idle() -> list[int]:
        found = [worker.pid for worker in site.workers() if worker.state is State.IDLE]
        return found if len(found) == 2 and without not in found else []

    return wait_for(idle, "two workers", patience=60)


@pytest.mark.parametrize("before", [True, False])
def test_workers_own_next_to_nothing_where_the_models_are_loaded_before_the_fork(
    ml: None, make_site: Callable[..., Site], sample: Sample, before: bool
) -> None:
    site = make_site(POOL.format(before=str(before).lower()))
    site.start()
    workers = ready(site)
    own = max(psutil.Process(pid).memory_full_info().uss for pid in workers)
    assert own < 40e6 if before else own > 100e6
    # One that was forked from a template that has long been warm works, too.
    kill(workers[0])
    ready(site, without=workers[0])
    payload = {"path": sample("coffee.png")}
    jobs = [site.queue.enqueue(type, payload) for type in ("tag", "caption", "nsfw") for _ in range(4)]
    found = [site.done(job, patience=60).result for job in jobs]
    assert found[0]["tags"][0]["label"] == "espresso"
    assert found[4]["caption"] == "A picture of an espresso."
    assert found[8]["nsfw"] == pytest.approx(0.013, abs=0.01)
    assert all(found[n : n + 4] == [found[n]] * 4 for n in (0, 4, 8))

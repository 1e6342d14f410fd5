"""The reference of the keys of supervisor.toml is what docs/keys.py writes from the code."""

from __future__ import annotations

import re

from docs.keys import GUIDE, ORDER, PAGE, guide, keys_of, page
from supervisor.config.settings import ALONE, TOP


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make reference"
    text = GUIDE.read_text(encoding="utf-8")
    assert text == guide(text), "run make reference"


def test_every_key_of_every_table_has_a_sentence() -> None:
    assert {*ORDER} >= TOP.keys() - ALONE.keys() - {"defaults"}
    for table in ("", *ORDER):
        for name, key in (keys_of(table) if table else TOP).items():
            assert re.fullmatch(r"[A-Z\"].*[^.]\.", key.about), f"{table} {name}: {key.about!r}"

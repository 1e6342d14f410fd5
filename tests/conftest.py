"""Fixtures that every kind of test may use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.site_under_test import HANDLERS, Site, site


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Make an installation from the text of its pools; everything it started is ended afterwards, and has left
    nothing behind, see tests/watch.py.
    """
    made: list[Site] = []
    with contextlib.ExitStack() as stack:

        def make(config: str, handlers: str = HANDLERS) -> Site:
            folder = tmp_path / f"site-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            made.append(stack.enter_context(site(folder, config, handlers)))
            return made[-1]

        yield make
    assert [words for one in made for words in one.wrong] == []

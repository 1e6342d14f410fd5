"""Failing assertions of the models show their values, as those of tests do."""

from __future__ import annotations

import pytest

# The engines' databases.
from tests.store.conftest import fresh_url as fresh_url
from tests.store.conftest import kept_database as kept_database

pytest.register_assert_rewrite(*(f"tests.model.{name}" for name in ("ground", "machine", "processes")))

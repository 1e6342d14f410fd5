"""Failing assertions of the models show their values, as those of tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"tests.model.{name}" for name in ("ground", "machine", "processes")))

"""What docs/handlers.md says of options; docs/tables.py makes its tables."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from pydantic import BaseModel

from docs.tables import OPTIONS


@pytest.mark.parametrize("model", OPTIONS, ids=lambda model: model.__name__)
def test_every_choice_is_shown(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
        text = f"{json.dumps(field.default)} {field.description}" if choices else ""
        assert [choice for choice in choices if f'"{choice}"' not in text] == [], name

"""What the clients have of the schema and of its limits is what this package has."""

from __future__ import annotations

import json
import re

from clients.definitions import FILE, definitions


def test_the_definitions_of_the_clients_are_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == definitions(), "run python clients/definitions.py"


def test_every_option_of_an_enqueue_has_a_type_in_node() -> None:
    types = FILE.with_name("queue.d.ts").read_text(encoding="utf-8")
    options = types.partition("interface JobOptions {")[2].partition("}")[0]
    assert set(re.findall(r"^  (\w+)\?:", options, re.MULTILINE)) == set(json.loads(definitions())["options"])

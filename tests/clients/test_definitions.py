"""What the clients have of the schema and of its limits is what this package has."""

from __future__ import annotations

from clients.definitions import FILE, definitions


def test_the_definitions_of_the_clients_are_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == definitions(), "run python clients/definitions.py"

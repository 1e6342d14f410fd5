"""The new table's definition: the application's columns first and in their order, then ours.

It cannot be STRICT, since the application's columns may have any declared type, so CHECKs hold what STRICT would.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.store.sqlite.adopt.parts import THEIRS, Part
from supervisor.store.sqlite.adopt.plan import AS_WRITTEN, FREE, Plan, literal
from supervisor.store.sqlite.adopt.shape import SQL, is_time
from supervisor.store.sqlite.definition import Column, names, quoted, tokens

NO_TYPE = "-"  # until a trigger has read the application's column


class Definitions:
    """The parts of CREATE TABLE, and notes on what could not stay."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.notes: list[str] = []

    def lines(self) -> Iterator[str]:
        plan = self._plan
        for part in plan.parts:
            if not part.shared:
                yield self._theirs(part)
            elif part.ours in THEIRS:
                yield part.column.text
            else:
                yield self._shared(part.column, plan.model(part))
        shared = {part.ours for part in plan.parts if part.shared}
        for model in plan.ours.columns:
            if model.name not in shared:
                yield self._ours(model)
        yield from self._constraints()
        if plan.old.strict:
            self.notes.append("the table is no longer STRICT; CHECKs hold the types of our columns")

    def _constraints(self) -> Iterator[str]:
        for text in self._plan.old.definition.constraints:
            words = [token.word for token in tokens(text)]
            kind = words[2] if words[0] == "CONSTRAINT" else words[0]
            if kind == "CHECK" and self._is_about_ours(text):
                self.notes.append(f"a constraint on columns of ours was left out: {text}")
            elif kind != "PRIMARY":
                yield text

    def _is_about_ours(self, text: str) -> bool:
        ours = {model.name for model in self._plan.ours.columns}
        ours |= {part.old.lower() for part in self._plan.parts if part.ours is not None}
        return bool(names(text) & ours)

    def _theirs(self, part: Part) -> str:
        """A column of the application's. Where another one has its meaning, triggers fill it after the INSERT."""
        column = part.column
        if part.ours is None and part.name == column.name:
            return column.text
        left_out = {"PRIMARY"}
        if part.ours is None:
            left_out |= {"CHECK"}  # it may name a column that is ours now
        elif part.ours == "id":
            left_out |= {"NOT", "CHECK", "UNIQUE", "REFERENCES"}
        else:
            left_out |= {"NOT", "CHECK", "DEFAULT"}
        kept = [clause.text for clause in column.clauses if clause.kind not in left_out]
        self.notes += [
            f"`{part.name}` gave up {clause.text}" for clause in column.clauses if clause.kind in ({"CHECK"} & left_out)
        ]
        if part.ours == "id":
            kept.append("UNIQUE")
        return " ".join([quoted(part.name), column.declared, *kept])

    def _ours(self, model: Column) -> str:
        """A column that the old table did not have under this name."""
        part = self._plan.part(model.name)
        lenient = part is not None and not part.column.not_null and model.clause("DEFAULT") is not None
        clauses = [
            SQL.not_null if clause.kind == "NOT" and lenient else self._widened(model, clause.text)
            for clause in model.clauses
        ]
        if model.name == "type":
            clauses.append(f"DEFAULT '{NO_TYPE}'")
        return " ".join([model.name, model.declared, *clauses, self._guard(model, model.name)]).rstrip()

    def _shared(self, column: Column, model: Column) -> str:
        """A column that both have: our type and constraints, with the rest of the application's definition."""
        if model.name in AS_WRITTEN:
            kept = [clause for clause in column.clauses if clause.kind != "CHECK"]
            return " ".join([quoted(column.name), column.declared, *(clause.text for clause in kept)])
        if model.name == "id":
            return " ".join([quoted(column.name), model.declared, *(clause.text for clause in model.clauses)])
        same = column.affinity == model.affinity
        parts = [quoted(column.name), column.declared if same else model.declared]
        default = self._default(column, model)
        if model.not_null:
            parts.append("NOT NULL" if column.not_null or not default else SQL.not_null)
        parts.append(default)
        parts += [self._widened(model, clause.text) for clause in model.clauses if clause.kind == "CHECK"]
        parts.append(self._guard(model, quoted(column.name)))
        parts += [clause.text for clause in column.clauses if clause.kind in ("UNIQUE", "REFERENCES")]
        if not same:
            declared = column.declared or "nothing"
            self.notes.append(f"`{column.name}` was declared {declared} and is {model.declared} now")
        for clause in column.clauses:
            if clause.kind in ("CHECK", "COLLATE") or (clause.kind == "NOT" and not model.not_null):
                self.notes.append(f"`{column.name}` gave up {clause.text}")
        return " ".join(part for part in parts if part)

    def _default(self, column: Column, model: Column) -> str:
        """The application's default, if it is valid for our jobs."""
        theirs, ours = column.clause("DEFAULT"), model.clause("DEFAULT")
        if theirs is None or theirs.value.upper() == "NULL" or is_time(model):
            return ours.text if ours else ""
        if model.name in ("status", "payload"):
            return ours.text if ours else ""
        return theirs.text

    def _widened(self, model: Column, text: str) -> str:
        """The CHECK of `status` also lets the application's words pass, which triggers replace at once."""
        foreign = self._plan.words.foreign_statuses
        check = model.clause("CHECK")
        if model.name != "status" or not foreign or check is None or text != check.text:
            return text
        return SQL.states_and_words.format(check=check.value, words=", ".join(map(literal, foreign)))

    def _guard(self, model: Column, column: str) -> str:
        """CHECKs instead of STRICT. The primary key needs none: only integers are rowids."""
        if model.name in FREE or model.name == "id":
            return ""
        types = [f"'{model.declared.lower()}'", *([] if model.not_null else ["'null'"])]
        return SQL.guard.format(column=column, types=", ".join(types))

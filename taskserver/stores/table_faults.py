"""Missing columns, keys and indexes, as after an interrupted import: for doctor and init."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ColumnsMissing, DatabaseError, TablesMissing, Unavailable
from .schema import Column, Table, definition, indexes, max_length, tables

OTHER_PROGRAM = "is a table of another program"


class Fault(NamedTuple):
    """What is wrong with a table."""

    table: str
    what: str
    fix: str = ""
    """The statements that fix it; empty if there are none, or if creating the tables again fixes it."""
    is_missing_index: bool = False
    """If so, `client.py init` runs its `fix`."""

    @property
    def is_of_other_program(self) -> bool:
        return self.what == OTHER_PROGRAM


class TableLooks(NamedTuple):
    """A dialect's SQL about tables; each SELECT may also find tables that are not ours."""

    indexes: str
    """A SELECT of table, index, whether it is unique, and its columns."""
    deletion_blockers: str
    """A SELECT of what may prevent deleting rows of the queue, which its marks name."""
    lengths: str = ""
    """A SELECT of table, text column and its maximum length; empty if there are no lengths."""
    lengthen: str = ""
    """The statement that gives a column its right length."""
    flaws: str = ""
    """A SELECT of table, what is wrong, and the statement that fixes it."""
    primary: str = "ALTER TABLE {table} ADD PRIMARY KEY ({columns})"
    """Empty if creating the tables again adds it."""
    drop: str = "DROP INDEX {name}"
    add: str = ""
    """The statement that adds an index; empty if creating the tables again adds it."""


def table_faults(database: Any) -> list[Fault]:
    """What is wrong with the tables of a queue. Raises DatabaseError."""
    looks, queue = database.dialect.facts().looks, database.dialect.table
    found: dict[str, dict[str, tuple[bool, str]]] = {}
    for name, index, is_unique, columns in database.fetch(looks.indexes):
        found.setdefault(str(name).lower(), {})[str(index)] = (bool(is_unique), str(columns))
    lengths = database.fetch(looks.lengths) if looks.lengths else ()
    most = {(str(name).lower(), column): int(length) for name, column, length in lengths}
    faults, ours = list[Fault](), set[str]()
    for table in tables():
        name = table.name.replace("jobs_queue", queue)
        ours.add(name.lower())
        faults += _faults_of(database, table, name, found.get(name.lower(), {}))
        faults += _short_columns(database, table, name, most)
    ours -= {fault.table.lower() for fault in faults if not fault.fix and not fault.is_missing_index}  # another's
    flaws = database.fetch(looks.flaws) if looks.flaws else ()
    return faults + [Fault(str(name), str(what), str(fix)) for name, what, fix in flaws if str(name).lower() in ours]


def _short_columns(database: Any, table: Table, name: str, most: Mapping[tuple[str, str], int]) -> Iterator[Fault]:
    """Text columns with a too small maximum length."""
    dialect = database.dialect
    for column in table.columns:
        found, needed = most.get((name.lower(), column.name)), max_length(column)
        if found is not None and found < needed:
            words = definition(dialect.kind, table, column)
            quoted = dialect.own_words["quoted"].format(name)
            fix = dialect.facts().looks.lengthen.format(table=quoted, column=column.name, definition=words)
            yield Fault(name, f"takes texts of {found} letters in {column.name}, and not of {needed}", fix)


def _unreadable(database: Any, table: Table, columns: Sequence[Column]) -> DatabaseError | None:
    """The error of reading these columns."""
    word = table.name.removeprefix("jobs_queue").lstrip("_") or "table"
    try:
        database.fetch(f"SELECT {', '.join(column.name for column in columns)} FROM {{{word}}} WHERE 1 = 0")
    except Unavailable:
        raise
    except DatabaseError as error:
        return error
    return None


def _faults_of(database: Any, table: Table, name: str, there: Mapping[str, tuple[bool, str]]) -> Iterator[Fault]:
    """What one table lacks; `there` has its indexes: whether each is unique, and its columns."""
    dialect = database.dialect
    facts, quote = dialect.facts(), dialect.own_words["quoted"].format
    quoted = quote(name)
    if error := _unreadable(database, table, table.columns):
        missing = [column for column in table.columns if _unreadable(database, table, [column])]
        if facts.is_denied(error):
            return
        if len(missing) > len(table.columns) / 2:
            kinds = {TablesMissing: "is missing", ColumnsMissing: OTHER_PROGRAM}
            yield Fault(name, kinds.get(type(error), str(error)))
            return
        for column in missing:
            add = f"ALTER TABLE {quoted} ADD COLUMN {definition(dialect.kind, table, column)}"
            yield Fault(name, f"lacks the column {column.name}", add)
    key = table.key.strip("()") or table.columns[0].name
    if (True, key) not in there.values():
        yield Fault(name, f"has no primary key ({key})", facts.looks.primary.format(table=quoted, columns=key))
    for usual_name, is_unique, columns in indexes(dialect.kind, table):
        index, unique = usual_name.replace("jobs_queue", dialect.table), "UNIQUE " if is_unique else ""
        if there.get(index) != (is_unique, columns):
            drop = facts.looks.drop.format(table=quoted, name=quote(index)) if index in there else ""
            add = facts.looks.add.format(table=quoted, name=quote(index), unique=unique, columns=columns)
            what = f"lacks the {unique.lower()}index {index} ({columns})"
            yield Fault(name, what, "; ".join(filter(None, (drop, add))), not drop)

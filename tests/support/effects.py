"""A table that tasks write to inside a transaction that completes them, and what of it was committed."""

from __future__ import annotations

from typing import Any

from tests.support.sites import Site

EFFECTS = {
    "sqlite": "CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, CHECK (number < 2000))",
    "postgresql": "CREATE TABLE effects (id SERIAL PRIMARY KEY, number INT)",
    "mysql": "CREATE TABLE effects (id INT PRIMARY KEY AUTO_INCREMENT, number INT) ENGINE=InnoDB",
}
"""By the kind of the store."""


class EffectsSite(Site):
    """A site with that table; its tasks call `meanwhile` of their module, which is the test's."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows.execute("DROP TABLE IF EXISTS effects")
        self.rows.execute(EFFECTS[self.rows.kind])

    def effects(self) -> list[int]:
        """What was committed, in order."""
        return [number for (number,) in self.rows.execute("SELECT number FROM effects ORDER BY number")]

    def states(self) -> list[tuple[Any, ...]]:
        """The status and the attempts of each row."""
        return self.columns("status, attempts")

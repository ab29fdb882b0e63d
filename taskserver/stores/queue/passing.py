"""Time that passes for a queue in a test: the database's clock stands, and the instants of its tasks come nearer."""

from __future__ import annotations

from .store import Store


class Passing:
    """Moves the instants for which tasks wait. For queues on which no worker is at work."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    # Claims have a due_at, too: the end of their lease, which stays.
    AHEAD = (
        "SELECT id, 0.0 - {due_at_age} FROM {table} WHERE {due_status} IN (0, 3, 5) AND due_at > {now} ORDER BY due_at"
    )
    MOVE = "UPDATE {table} SET due_at = {after}, updated_at = updated_at WHERE id = ? AND status IN (0, 3, 5)"

    def next_seconds(self) -> float | None:
        """Seconds until the next task is due that is not yet; None where none waits for an instant."""
        row = self._database.fetch_first(f"{self.AHEAD} LIMIT 1")
        return None if row is None else float(row[1])

    def let_pass(self, seconds: float) -> None:
        """Bring all instants that lie ahead nearer by so many seconds."""
        for task_id, ahead in self._database.fetch(self.AHEAD):
            self._database.change(self.MOVE, (float(ahead) - seconds, task_id))

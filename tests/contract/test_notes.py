"""Notes of every store: a person's later word counts, and of several programs that look at once one has the word."""

from __future__ import annotations

import pytest

from taskserver.errors import DatabaseError
from taskserver.stores import Store
from taskserver.stores.queue.notes import ADDED, KEY_KEPT_SECONDS, MAX_READ, KeyTaken, Notes
from tests.contract.verbs import PLAIN
from tests.support.rows import Rows


def test_notes_are_written_over_in_one_commit_or_none_and_found_by_name_and_kind(store: Store) -> None:
    notes, text = Notes(store.database), "so be it: 'ü🎉'\\ "
    names = [f"ran {number}" for number in range(MAX_READ + 1)]
    notes.put(names[1], "old")
    notes.put_all([(name, text) for name in names])
    with pytest.raises(DatabaseError):
        notes.put_all([(names[0], "newest"), ("ran x", None)])  # type: ignore[list-item]  # no note has NULL
    found = notes.find_all([*names, "ran x"])
    assert sorted((note.name, note.value) for note in found) == sorted((name, text) for name in names)
    notes.put("accepted fatal", text)
    assert [note.name for note in notes.of_kind("accepted")] == ["accepted fatal"]
    assert notes.of_kind("accept") == []
    assert [notes.remove("accepted fatal") for _ in range(2)] == [True, False]
    assert notes.find("accepted fatal") is None


def test_a_note_is_replaced_once_by_those_who_read_the_one_before(store: Store, rows: Rows) -> None:
    notes = Notes(store.database)
    steps: list[tuple[str | None, str | None]] = [(None, "a"), ("a", "A"), ("A", "a"), ("a", None)]
    for before, after in steps:
        assert not notes.replace("check", "of nobody", after)
        assert [notes.replace("check", before, after) for _ in range(2)] == [True, False]
        assert [value for (value,) in rows.execute("SELECT value FROM jobs_queue_notes")] == ([after] if after else [])


def test_tasks_of_one_key_are_added_once_until_the_key_is_old(store: Store, rows: Rows) -> None:
    """→ new, or nothing if the key stands; other tasks under it are refused."""
    notes = Notes(store.database)
    added = notes.add_once([PLAIN] * 2, "k", "digest")
    assert notes.add_once([PLAIN] * 2, "k", "digest") == added == [row["id"] for row in rows.all()]
    with pytest.raises(KeyTaken):
        notes.add_once([PLAIN], "k", "another digest")
    notes.delete_old_keys()
    assert len(notes.of_kind(ADDED)) == 1
    rows.execute(f"UPDATE jobs_queue_notes SET noted_at = {rows.after(-KEY_KEPT_SECONDS - 60)}")
    notes.delete_old_keys()
    assert notes.of_kind(ADDED) == []
    assert notes.add_once([PLAIN] * 2, "k", "digest") != added

"""Notes of every store: a person's later word counts, and of several programs that look at once one has the word."""

from __future__ import annotations

from taskserver.stores import Store
from taskserver.stores.queue.notes import MAX_NAME, Notes
from tests.support.rows import Rows


def test_a_note_is_written_over_found_and_removed(store: Store) -> None:
    notes = Notes(store.database)
    name, text = "accepted fatal", "so be it: 'ü🎉'\\ "
    assert (notes.find(name), notes.remove(name)) == (None, False)
    for value in ("first", text):
        notes.put(name, value)
    found = notes.find(name)
    assert found is not None
    assert found[:2] == (name, text)
    assert found.noted_at[:2] == "20"
    assert (notes.remove(name), notes.find(name)) == (True, None)


def test_the_notes_of_a_kind_are_those_whose_names_begin_with_its_word(store: Store) -> None:
    notes = Notes(store.database)
    for name in ("check", "check groups=3", "accepted b", "accepted a", "acceptedx", "accepted", "x" * MAX_NAME):
        notes.put(name, "")
    assert [note.name for note in notes.of_kind("accepted")] == ["accepted a", "accepted b"]
    assert [note.name for note in notes.of_kind("check")] == ["check groups=3"]


def test_a_note_is_replaced_once_by_whoever_read_the_one_before(store: Store, rows: Rows) -> None:
    notes = Notes(store.database)
    steps: list[tuple[str | None, str | None]] = [(None, "a"), ("a", "A"), ("A", "a"), ("a", None)]
    for before, after in steps:
        assert not notes.replace("check", "of nobody", after)
        assert [notes.replace("check", before, after) for _ in range(2)] == [True, False]
        assert [value for (value,) in rows.execute("SELECT value FROM jobs_queue_notes")] == ([after] if after else [])

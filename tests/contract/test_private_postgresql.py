"""The tests' own PostgreSQL, on which crash tests rest: it dies as a whole, and comes back with what was committed."""

from __future__ import annotations

import pytest

from tests.conftest import without
from tests.support.postgresql import PostgreSQL, programs_folder
from tests.support.processes import is_alive, wait_until


@pytest.mark.long
def test_a_killed_postgresql_starts_again_at_once_though_a_connection_was_busy() -> None:
    if programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    with PostgreSQL(durable=True) as server:
        server.execute("CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (42)")
        busy = server.connect()
        pid = busy.info.backend_pid
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000)")
        wait_until(lambda: server.execute(f"SELECT state FROM pg_stat_activity WHERE pid = {pid}") == [("active",)])
        server.kill()
        assert not is_alive(pid)
        server.start()
        assert server.execute("SELECT n FROM kept") == [(42,)]
    assert not server.folder.exists()

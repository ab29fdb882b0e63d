"""The words of MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Mapping

from ..dialect import assignments
from ..statements import Words


class MySQLWords(Words):
    """The words of MySQL from 5.7 on, and MariaDB from 10.3 on."""

    now = "NOW(6)"
    after = "NOW(6) + INTERVAL ? SECOND"
    seconds_since = "TIMESTAMPDIFF(MICROSECOND, {}, NOW(6)) / 1e6"
    instant_text = "DATE_FORMAT({}, '%Y-%m-%d %H:%i:%s.%f')"
    this_hour = "DATE_FORMAT(NOW(), '%Y-%m-%d %H:00:00')"
    bytes_of = "OCTET_LENGTH({})"
    as_bytes = "CAST({} AS BINARY)"
    position = "INSTR({}, ?)"
    sign_of = "HEX({})"
    greatest = "GREATEST"
    insert_or_ignore = "INSERT IGNORE"
    keep_standing = "ON DUPLICATE KEY UPDATE unique_key = unique_key"
    given = "VALUES({})"
    quoted = "`{}`"
    by_key = "FORCE INDEX (PRIMARY)"
    by_status = "FORCE INDEX (claim_by_group)"
    by_due = "FORCE INDEX (wake_due)"
    groups_of_status = "SELECT DISTINCT status, group_id FROM {0} {1} WHERE status = {2} ORDER BY group_id LIMIT ?"
    delete_by_key = "DELETE gone FROM {} AS gone FORCE INDEX (PRIMARY)"
    instant_type = "TIMESTAMP(6)"
    number_type = "BIGINT UNSIGNED"
    small_type = "SMALLINT UNSIGNED"
    flag_type = "TINYINT UNSIGNED"
    text_type = "TEXT"
    long_text_type = "MEDIUMTEXT"

    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        # MySQL has no condition for all changes together.
        new = {column: f"IF({condition}, {to}, {column})" if condition else to for column, to in changes.items()}
        return f"ON DUPLICATE KEY UPDATE {assignments(new)}"

-- taskserver: the tables of one queue, for SQLite 3.24 and later. `client.py init` makes them.
--
-- The columns mean what they mean in schema.sql. Differs from MySQL:
-- instants are text, YYYY-MM-DD HH:MM:SS.ffffff in UTC (SQLite's clock has milliseconds: 000 is appended);
-- declared types are advice only, so CHECKs stand for what the types of MySQL's columns refuse;
-- AUTOINCREMENT never gives an id again; indexes are named after the table, as a database has one name space for them.

CREATE TABLE IF NOT EXISTS jobs_queue (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  task         TEXT    NOT NULL CHECK (length(task) <= 255),
  args         TEXT    NULL DEFAULT NULL,
  group_id     INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(group_id) = 'integer' AND group_id BETWEEN 0 AND 4294967295),
  priority     INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(priority) = 'integer' AND priority BETWEEN -2147483648 AND 2147483647),
  status       INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(status) = 'integer' AND status BETWEEN 0 AND 255),
  attempts     INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 4294967295),
  max_attempts INTEGER NULL DEFAULT NULL
               CHECK (max_attempts IS NULL OR typeof(max_attempts) = 'integer' AND max_attempts BETWEEN 0 AND 4294967295),
  due_at       TEXT    NULL DEFAULT NULL
               CHECK (due_at IS NULL OR due_at GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]*'),
  claim        INTEGER NULL DEFAULT NULL,
  unique_key   TEXT    NULL DEFAULT NULL CHECK (length(CAST(unique_key AS BLOB)) <= 255),
  error_text   TEXT    NULL DEFAULT NULL,
  created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  started_at   TEXT    NULL DEFAULT NULL,
  finished_at  TEXT    NULL DEFAULT NULL,
  updated_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  version      INTEGER NULL DEFAULT NULL,
  stages       TEXT    NULL DEFAULT NULL,
  stage        INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(stage) = 'integer' AND stage BETWEEN 0 AND 65535),
  awaited      INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(awaited) = 'integer' AND awaited BETWEEN 0 AND 255),
  result       TEXT    NULL DEFAULT NULL,
  progress     TEXT    NULL DEFAULT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS jobs_queue_unique_key ON jobs_queue (unique_key);
CREATE INDEX IF NOT EXISTS jobs_queue_claim_by_group ON jobs_queue (status, group_id, priority, id);
CREATE INDEX IF NOT EXISTS jobs_queue_claim_any_group ON jobs_queue (status, priority, id);
CREATE INDEX IF NOT EXISTS jobs_queue_wake_due ON jobs_queue (status, due_at);

CREATE TABLE IF NOT EXISTS jobs_queue_done (
  done_id      INTEGER PRIMARY KEY AUTOINCREMENT,
  id           INTEGER NOT NULL,
  task         TEXT    NOT NULL,
  args         TEXT    NULL DEFAULT NULL,
  group_id     INTEGER NOT NULL DEFAULT 0,
  priority     INTEGER NOT NULL DEFAULT 0,
  status       INTEGER NOT NULL DEFAULT 2,
  attempts     INTEGER NOT NULL DEFAULT 0,
  max_attempts INTEGER NULL DEFAULT NULL,
  due_at       TEXT    NULL DEFAULT NULL,
  claim        INTEGER NULL DEFAULT NULL,
  unique_key   TEXT    NULL DEFAULT NULL,
  error_text   TEXT    NULL DEFAULT NULL,
  created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  started_at   TEXT    NULL DEFAULT NULL,
  finished_at  TEXT    NULL DEFAULT NULL,
  updated_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  version      INTEGER NULL DEFAULT NULL,
  stages       TEXT    NULL DEFAULT NULL,
  stage        INTEGER NOT NULL DEFAULT 0,
  awaited      INTEGER NOT NULL DEFAULT 0,
  result       TEXT    NULL DEFAULT NULL,
  progress     TEXT    NULL DEFAULT NULL
);
CREATE INDEX IF NOT EXISTS jobs_queue_done_show_by_id ON jobs_queue_done (id);

CREATE TABLE IF NOT EXISTS jobs_queue_dependencies (
  parent_id    INTEGER NOT NULL CHECK (typeof(parent_id) = 'integer' AND parent_id >= 0),
  child_id     INTEGER NOT NULL CHECK (typeof(child_id) = 'integer' AND child_id >= 0),
  PRIMARY KEY (parent_id, child_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_queue_dependencies_by_child ON jobs_queue_dependencies (child_id, parent_id);

CREATE TABLE IF NOT EXISTS jobs_queue_workers (
  host         TEXT    NOT NULL,
  group_ids    TEXT    NOT NULL,
  pid          INTEGER NOT NULL,
  started_at   TEXT    NULL DEFAULT NULL,
  ended_at     TEXT    NULL DEFAULT NULL,
  reason       TEXT    NULL DEFAULT NULL,
  taken        INTEGER NOT NULL DEFAULT 0,
  done         INTEGER NOT NULL DEFAULT 0,
  fatal        INTEGER NOT NULL DEFAULT 0,
  lost         INTEGER NOT NULL DEFAULT 0,
  released     INTEGER NOT NULL DEFAULT 0,
  previous_started_at TEXT NULL DEFAULT NULL,
  PRIMARY KEY (host, group_ids)
);

CREATE TABLE IF NOT EXISTS jobs_queue_processes (
  number       INTEGER NOT NULL PRIMARY KEY,
  host         TEXT    NOT NULL,
  group_ids    TEXT    NOT NULL,
  pid          INTEGER NOT NULL,
  identity     TEXT    NOT NULL DEFAULT '',
  started_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  seen_at      TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  ended_at     TEXT    NULL DEFAULT NULL,
  taken        INTEGER NOT NULL DEFAULT 0,
  done         INTEGER NOT NULL DEFAULT 0,
  failed       INTEGER NOT NULL DEFAULT 0,
  fatal        INTEGER NOT NULL DEFAULT 0,
  lost         INTEGER NOT NULL DEFAULT 0,
  released     INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS jobs_queue_paused (
  group_id     INTEGER PRIMARY KEY,
  paused_at    TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE TABLE IF NOT EXISTS jobs_queue_schedules (
  name         TEXT    NOT NULL PRIMARY KEY,
  task         TEXT    NOT NULL CHECK (length(task) <= 255),
  args         TEXT    NULL DEFAULT NULL,
  group_id     INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(group_id) = 'integer' AND group_id BETWEEN 0 AND 4294967295),
  priority     INTEGER NOT NULL DEFAULT 0
               CHECK (typeof(priority) = 'integer' AND priority BETWEEN -2147483648 AND 2147483647),
  every_seconds INTEGER NULL DEFAULT NULL
               CHECK (every_seconds IS NULL OR typeof(every_seconds) = 'integer' AND every_seconds BETWEEN 0 AND 4294967295),
  cron         TEXT    NULL DEFAULT NULL,
  timezone     TEXT    NOT NULL DEFAULT 'UTC',
  next_at      TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
               CHECK (next_at GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]*'),
  created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);
CREATE INDEX IF NOT EXISTS jobs_queue_schedules_look_for_due ON jobs_queue_schedules (next_at);

CREATE TABLE IF NOT EXISTS jobs_queue_stats (
  hour         TEXT    NOT NULL,
  group_id     INTEGER NOT NULL,
  task         TEXT    NOT NULL,
  begun        INTEGER NOT NULL DEFAULT 0,
  attempts     INTEGER NOT NULL DEFAULT 0,
  done         INTEGER NOT NULL DEFAULT 0,
  failed       INTEGER NOT NULL DEFAULT 0,
  fatal        INTEGER NOT NULL DEFAULT 0,
  lost         INTEGER NOT NULL DEFAULT 0,
  ran_seconds  REAL    NOT NULL DEFAULT 0,
  slowest_seconds REAL NOT NULL DEFAULT 0,
  waited_seconds REAL  NOT NULL DEFAULT 0,
  longest_wait_seconds REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (hour, group_id, task)
);

CREATE TABLE IF NOT EXISTS jobs_queue_notes (
  name         TEXT    NOT NULL PRIMARY KEY,
  value        TEXT    NOT NULL,
  noted_at     TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE TABLE IF NOT EXISTS jobs_queue_schema (
  version      INTEGER PRIMARY KEY,
  applied_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

INSERT OR IGNORE INTO jobs_queue_schema (version) SELECT 8 WHERE NOT EXISTS (SELECT * FROM jobs_queue_schema);

-- taskserver: the tables of one queue, for MySQL 5.7 and later and MariaDB 10.3 and later.
--
-- `client.py init` makes them under the configured name. By hand: load this file in phpMyAdmin or with
-- `mysql DATABASE < schema.sql`, and for another name than jobs_queue replace that word everywhere first.
-- Loading it again changes nothing.
--
-- Instants are TIMESTAMP(6): stored in UTC whatever time zone a session has, and set by the database's own clock.

-- The queue. A producer needs no more than:
--   INSERT INTO jobs_queue (task, args, group_id, priority)
--   VALUES ('tasks.send_letter', '{"to": "a@example.org"}', 3, 10)
CREATE TABLE IF NOT EXISTS jobs_queue (
  id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  task         VARCHAR(255)    NOT NULL,             -- the callable: module.function or module.Class.method
  args         MEDIUMTEXT      NULL DEFAULT NULL,    -- JSON: an object (keywords) or an array (positions), at most 1 MiB
  group_id     INT UNSIGNED    NOT NULL DEFAULT 0,   -- a worker may be restricted to some groups
  priority     INT             NOT NULL DEFAULT 0,   -- smaller runs sooner, equal ones in order of id
  status       TINYINT UNSIGNED NOT NULL DEFAULT 0,  -- 0 new, 1 in progress, 2 done, 3 error, 4 fatal, 5 waiting, 7 cancelled
  attempts     INT UNSIGNED    NOT NULL DEFAULT 0,   -- times started
  max_attempts INT UNSIGNED    NULL DEFAULT NULL,    -- NULL: as the worker is set
  due_at       TIMESTAMP(6)    NULL DEFAULT NULL,    -- status 3, 5: when it becomes new, 1: when the lease ends
  claim        BIGINT UNSIGNED NULL DEFAULT NULL,    -- status 1: the token of the claim that holds the row
  unique_key   VARBINARY(255)  NULL DEFAULT NULL,    -- only one row may hold a key, binary: compared byte by byte
  error_text   VARCHAR(1000)   NULL DEFAULT NULL,    -- the last error, NULL once it succeeds
  created_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  started_at   TIMESTAMP(6)    NULL DEFAULT NULL,    -- status 1 without it: claimed, not started
  finished_at  TIMESTAMP(6)    NULL DEFAULT NULL,
  updated_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),  -- status 0: ready since
  version      BIGINT UNSIGNED NULL DEFAULT NULL,    -- of what the task is about: a rerun with an older one changes nothing
  stages       TEXT            NULL DEFAULT NULL,    -- of a pipeline: a JSON array of what runs one after the other
  stage        SMALLINT UNSIGNED NOT NULL DEFAULT 0,  -- how many of those are over: task, args and the rest are the next one's
  awaited      TINYINT UNSIGNED NOT NULL DEFAULT 0,  -- 1: other tasks may wait for it, see jobs_queue_dependencies
  result       MEDIUMTEXT      NULL DEFAULT NULL,    -- status 2: what it returned, as JSON, at most 64 KiB
  progress     TEXT            NULL DEFAULT NULL,    -- how far it has come, as {"done": 3, "total": 10, "text": "reading"}
  UNIQUE KEY unique_key (unique_key),
  KEY claim_by_group (status, group_id, priority, id),
  KEY claim_any_group (status, priority, id),
  KEY wake_due (status, due_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The archive, for mode `move`. It has a key of its own, since old servers give an id again after a restart.
CREATE TABLE IF NOT EXISTS jobs_queue_done (
  done_id      BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  id           BIGINT UNSIGNED NOT NULL,
  task         VARCHAR(255)    NOT NULL,
  args         MEDIUMTEXT      NULL DEFAULT NULL,
  group_id     INT UNSIGNED    NOT NULL DEFAULT 0,
  priority     INT             NOT NULL DEFAULT 0,
  status       TINYINT UNSIGNED NOT NULL DEFAULT 2,
  attempts     INT UNSIGNED    NOT NULL DEFAULT 0,
  max_attempts INT UNSIGNED    NULL DEFAULT NULL,
  due_at       TIMESTAMP(6)    NULL DEFAULT NULL,
  claim        BIGINT UNSIGNED NULL DEFAULT NULL,
  unique_key   VARBINARY(255)  NULL DEFAULT NULL,
  error_text   VARCHAR(1000)   NULL DEFAULT NULL,
  created_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  started_at   TIMESTAMP(6)    NULL DEFAULT NULL,
  finished_at  TIMESTAMP(6)    NULL DEFAULT NULL,
  updated_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  version      BIGINT UNSIGNED NULL DEFAULT NULL,
  stages       TEXT            NULL DEFAULT NULL,
  stage        SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  awaited      TINYINT UNSIGNED NOT NULL DEFAULT 0,
  result       MEDIUMTEXT      NULL DEFAULT NULL,
  progress     TEXT            NULL DEFAULT NULL,
  KEY show_by_id (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Which tasks wait for which: one row for each pair, until the parent is done.
CREATE TABLE IF NOT EXISTS jobs_queue_dependencies (
  parent_id    BIGINT UNSIGNED NOT NULL,             -- has to be done, before
  child_id     BIGINT UNSIGNED NOT NULL,             -- this one may start
  PRIMARY KEY (parent_id, child_id),
  KEY by_child (child_id, parent_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The last run of each crontab line: one row for each host and groups.
CREATE TABLE IF NOT EXISTS jobs_queue_workers (
  host         VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  group_ids    VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- such as '3,5,6', or 'all'
  pid          INT UNSIGNED    NOT NULL,
  started_at   TIMESTAMP(6)    NULL DEFAULT NULL,
  ended_at     TIMESTAMP(6)    NULL DEFAULT NULL,    -- NULL: it runs, or it was killed
  reason       VARCHAR(20)     NULL DEFAULT NULL,    -- why it ended
  taken        INT UNSIGNED    NOT NULL DEFAULT 0,   -- tasks that it took up: those below, and those that failed
  done         INT UNSIGNED    NOT NULL DEFAULT 0,
  fatal        INT UNSIGNED    NOT NULL DEFAULT 0,
  lost         INT UNSIGNED    NOT NULL DEFAULT 0,   -- taken over by another worker meanwhile
  released     INT UNSIGNED    NOT NULL DEFAULT 0,   -- claimed, and released unstarted
  previous_started_at TIMESTAMP(6) NULL DEFAULT NULL,  -- of the run before: how often cron runs it
  PRIMARY KEY (host, group_ids)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The workers at work now: each from its first task on until it ends, one that waits for tasks from its start on.
CREATE TABLE IF NOT EXISTS jobs_queue_processes (
  number       INT UNSIGNED    NOT NULL,             -- random: a claim of its tasks is number * 4294967296 and more
  host         VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  group_ids    VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- such as '3,5,6', or 'all'
  pid          INT UNSIGNED    NOT NULL,
  identity     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',  -- distinguishes it from later ones
  started_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  seen_at      TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),  -- when it wrote the counts so far
  ended_at     TIMESTAMP(6)    NULL DEFAULT NULL,    -- when a run on its host found that the process is gone
  taken        INT UNSIGNED    NOT NULL DEFAULT 0,   -- these as in jobs_queue_workers
  done         INT UNSIGNED    NOT NULL DEFAULT 0,
  failed       INT UNSIGNED    NOT NULL DEFAULT 0,
  fatal        INT UNSIGNED    NOT NULL DEFAULT 0,
  lost         INT UNSIGNED    NOT NULL DEFAULT 0,
  released     INT UNSIGNED    NOT NULL DEFAULT 0,
  PRIMARY KEY (number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Groups whose tasks are not claimed for now.
CREATE TABLE IF NOT EXISTS jobs_queue_paused (
  group_id     INT UNSIGNED    NOT NULL,             -- 4294967295: all groups
  paused_at    TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (group_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Periodic tasks. At next_at a worker adds one, with the unique_key 'schedule:' and the name, and sets the next time.
CREATE TABLE IF NOT EXISTS jobs_queue_schedules (
  name         VARCHAR(200)    NOT NULL,
  task         VARCHAR(255)    NOT NULL,
  args         MEDIUMTEXT      NULL DEFAULT NULL,
  group_id     INT UNSIGNED    NOT NULL DEFAULT 0,
  priority     INT             NOT NULL DEFAULT 0,
  every_seconds INT UNSIGNED   NULL DEFAULT NULL,    -- either this, or
  cron         VARCHAR(255)    NULL DEFAULT NULL,    -- this, as */5 * * * *, in
  timezone     VARCHAR(64)     NOT NULL DEFAULT 'UTC',  -- this time zone
  next_at      TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  created_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (name),
  KEY look_for_due (next_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What was done, by the hour in which it ended. Workers add to it once a minute, and at the end of a run.
CREATE TABLE IF NOT EXISTS jobs_queue_stats (
  hour         TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  group_id     INT UNSIGNED    NOT NULL,
  task         VARCHAR(255)    NOT NULL,             -- empty: names that nothing can be called by
  begun        BIGINT UNSIGNED NOT NULL DEFAULT 0,   -- tasks that were started for the first time
  attempts     BIGINT UNSIGNED NOT NULL DEFAULT 0,   -- starts in all
  done         BIGINT UNSIGNED NOT NULL DEFAULT 0,
  failed       BIGINT UNSIGNED NOT NULL DEFAULT 0,   -- attempts that failed, the fatal ones too
  fatal        BIGINT UNSIGNED NOT NULL DEFAULT 0,
  lost         BIGINT UNSIGNED NOT NULL DEFAULT 0,   -- attempts whose worker died
  ran_seconds  DOUBLE          NOT NULL DEFAULT 0,   -- sum of the attempts that are done or failed
  slowest_seconds DOUBLE       NOT NULL DEFAULT 0,
  waited_seconds DOUBLE        NOT NULL DEFAULT 0,   -- sum of the same attempts: from ready to started
  longest_wait_seconds DOUBLE  NOT NULL DEFAULT 0,
  PRIMARY KEY (hour, group_id, task)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What is remembered of this queue: findings that a person has accepted, what `client.py check --mail` reported, the
-- keys of requests that added tasks over HTTP, and how the last task of each schedule ended.
CREATE TABLE IF NOT EXISTS jobs_queue_notes (
  name         VARCHAR(190) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  value        TEXT            NOT NULL,
  noted_at     TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The versions of these tables that were applied, the greatest one counts.
CREATE TABLE IF NOT EXISTS jobs_queue_schema (
  version      INT UNSIGNED    NOT NULL,
  applied_at   TIMESTAMP(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Only where none is recorded: tables of an older version are upgraded by client.py init, not by this file.
INSERT IGNORE INTO jobs_queue_schema (version) SELECT 8 FROM DUAL WHERE NOT EXISTS (SELECT * FROM jobs_queue_schema);

<?php
/*
 * Delayed, unique and changed tasks from any PHP page, each by one statement. Copy it outside the web folder.
 *
 *     require '/home/you/kinds.php';
 *     add_delayed($pdo, 'tasks.remind', ['order' => 17], 3600);            // in an hour
 *     add_unique($pdo, 'tasks.rebuild_index', [], 'index');                // nothing, where one stands already
 *     run_again($pdo, 'tasks.index', ['page' => 5], 'page 5');             // once more, with these arguments
 *     run_again_if_newer($pdo, 'tasks.index', ['page' => 5], 'page 5', 8); // unless it knows version 8 or a newer one
 *
 * They begin and commit nothing: inside a transaction of yours the task stands or falls with your own rows. Commit it
 * soon: until then the worker cannot record the end of a task whose key it has. The keys are compared byte by byte, so
 * connect with utf8mb4. Arguments are as in enqueue.php, whose functions these go beside.
 *
 * For PHP 7.3 and later, with PDO and ERRMODE_EXCEPTION. To add needs the right to INSERT; to run again, which changes a
 * row that stands, needs UPDATE and SELECT too (docs/kinds/rerun.md names the columns).
 */

// Status 5 waits for due_at, which is reckoned by the database's clock, in seconds that no change of the clocks moves.
const ADD_DELAYED = 'INSERT INTO jobs_queue (task, args, status, due_at)
                     VALUES (?, ?, 5, FROM_UNIXTIME(UNIX_TIMESTAMP() + ?))';

const ADD_UNIQUE = 'INSERT INTO jobs_queue (task, args, unique_key) VALUES (?, ?, ?)';
const KEY_STANDS = 1062;

// Workers delete tasks while pages add others of the same key: where each waits for the other, the server undoes one.
const DEADLOCK = 1213;
const MOST_TRIES = 10;

// One that runs (status 1 and started) keeps its worker: attempts 0 is what has it run once more after that. One that
// waits for other tasks (5 without an instant) goes on waiting. Any other is new. MySQL assigns from the first to the
// last, so due_at comes after status: it asks for what runs, which status leaves as it is, and status asks for due_at.
const RUN_AGAIN = 'INSERT INTO jobs_queue (task, args, unique_key) VALUES (?, ?, ?)
    ON DUPLICATE KEY UPDATE
        args = VALUES(args),
        attempts = 0,
        error_text = NULL,
        status = IF(status = 1 AND started_at IS NOT NULL, 1, IF(status = 5 AND due_at IS NULL, 5, 0)),
        due_at = IF(status = 1 AND started_at IS NOT NULL, due_at, NULL)';

// The same under a condition, which each assignment asks for itself; the version, on which it rests, comes last.
const NEWER = 'IFNULL(VALUES(version) > version, 1)';
const RUN_AGAIN_IF_NEWER = 'INSERT INTO jobs_queue (task, args, unique_key, version) VALUES (?, ?, ?, ?)
    ON DUPLICATE KEY UPDATE
        args = IF(' . NEWER . ', VALUES(args), args),
        attempts = IF(' . NEWER . ', 0, attempts),
        error_text = IF(' . NEWER . ', NULL, error_text),
        status = IF(NOT ' . NEWER . ' OR status = 1 AND started_at IS NOT NULL, status,
                    IF(status = 5 AND due_at IS NULL, 5, 0)),
        due_at = IF(NOT ' . NEWER . ' OR status = 1 AND started_at IS NOT NULL, due_at, NULL),
        version = IF(' . NEWER . ', VALUES(version), version)';

function add_delayed(PDO $pdo, string $task, array $args, int $seconds): void
{
    $pdo->prepare(ADD_DELAYED)->execute([$task, json_of($args), $seconds]);
}

/** Whether it was added; not, where a task with this key stands. */
function add_unique(PDO $pdo, string $task, array $args, string $key): bool
{
    try {
        // Not INSERT IGNORE, which would cut a key that is too long.
        return execute_surely($pdo, ADD_UNIQUE, [$task, json_of($args), $key]);
    } catch (PDOException $error) {
        if ($error->errorInfo[1] !== KEY_STANDS) {
            throw $error;
        }
        return false;
    }
}

function run_again(PDO $pdo, string $task, array $args, string $key): void
{
    execute_surely($pdo, RUN_AGAIN, [$task, json_of($args), $key]);
}

function run_again_if_newer(PDO $pdo, string $task, array $args, string $key, int $version): void
{
    execute_surely($pdo, RUN_AGAIN_IF_NEWER, [$task, json_of($args), $key, $version]);
}

/** Once more after a deadlock; not inside a transaction of yours, which the server has undone as a whole. */
function execute_surely(PDO $pdo, string $sql, array $values): bool
{
    $most_tries = $pdo->inTransaction() ? 1 : MOST_TRIES;
    for ($try = 1; ; $try++) {
        try {
            return $pdo->prepare($sql)->execute($values);
        } catch (PDOException $error) {
            if ($error->errorInfo[1] !== DEADLOCK || $try >= $most_tries) {
                throw $error;
            }
            usleep(random_int(1, 2 ** $try) * 1000);
        }
    }
}

function json_of(array $args): ?string
{
    return $args ? json_encode($args, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) : null;
}

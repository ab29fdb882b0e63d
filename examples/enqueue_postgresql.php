<?php
/*
 * Adds tasks to PostgreSQL from any PHP page, on the connection that the page has: PDO or pg_connect(). Copy it outside
 * the web folder; enqueue.php is the same for MySQL and MariaDB.
 *
 *     require '/home/you/enqueue_postgresql.php';
 *     add_task_by_pdo($pdo, 'tasks.send_letter', ['to' => 'a@example.org'], 3, 10);        // group 3, priority 10
 *     add_task_by_pgsql($db, 'tasks.send_letter', ['to' => 'a@example.org'], 3, 10, 3600); // in an hour
 *
 * Both return the task's id, and throw if nothing was added: then PostgreSQL has ended your transaction, too. They
 * neither begin nor commit: in your own transaction your rows and the task are added together, or none of them.
 *
 * Arguments become JSON: names are passed by name, ['a', 'b'] by position, [] is none. array_filter() leaves gaps in a
 * list: use array_values(). An empty array inside arguments is an empty list; for an empty dict write new stdClass.
 *
 * For PHP 7.3 and later. The database user needs INSERT on the columns of add_task_sql, and SELECT on id for RETURNING.
 */

function add_task_by_pdo(
    PDO $pdo, string $task, array $args = [], int $group_id = 0, int $priority = 0, int $delay_seconds = 0
): int {
    $insert = $pdo->prepare(add_task_sql($delay_seconds, ['?', '?', '?', '?', '?']));
    if (!$insert || !$insert->execute(task_values($task, $args, $group_id, $priority, $delay_seconds))) {
        throw new RuntimeException('The task was not added: ' . ($insert ?: $pdo)->errorInfo()[2]);
    }
    return (int) $insert->fetchColumn();
}

/** $db is of pg_connect(). */
function add_task_by_pgsql(
    $db, string $task, array $args = [], int $group_id = 0, int $priority = 0, int $delay_seconds = 0
): int {
    $sql = add_task_sql($delay_seconds, ['$1', '$2', '$3', '$4', '$5']);
    $added = @pg_query_params($db, $sql, task_values($task, $args, $group_id, $priority, $delay_seconds));
    if (!$added) {
        throw new RuntimeException('The task was not added: ' . pg_last_error($db));
    }
    return (int) pg_fetch_result($added, 0, 0);
}

function add_task_sql(int $delay_seconds, array $marks): string
{
    [$task, $args, $group_id, $priority, $delay] = $marks;
    if ($delay_seconds <= 0) {
        return "INSERT INTO jobs_queue (task, args, group_id, priority)
                VALUES ($task, $args, $group_id, $priority) RETURNING id";
    }
    // Status 5 waits for due_at, by the database's clock.
    return "INSERT INTO jobs_queue (task, args, group_id, priority, status, due_at)
            VALUES ($task, $args, $group_id, $priority, 5, now() + make_interval(secs => $delay)) RETURNING id";
}

function task_values(string $task, array $args, int $group_id, int $priority, int $delay_seconds): array
{
    // json_encode writes text beyond ASCII as \u…, so it arrives whole in every character set of a connection.
    $json = $args ? json_encode($args, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) : null;
    $values = [$task, $json, $group_id, $priority];
    return $delay_seconds > 0 ? array_merge($values, [$delay_seconds]) : $values;
}

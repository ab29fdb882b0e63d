<?php
/*
 * Adds tasks from any PHP page, on the connection that the page has: PDO or mysqli. Copy it outside the web folder.
 *
 *     require '/home/you/enqueue.php';
 *     add_task_by_pdo($pdo, 'tasks.send_letter', ['to' => 'a@example.org'], 3, 10);         // group 3, priority 10
 *     add_task_by_mysqli($db, 'tasks.send_letter', ['to' => 'a@example.org'], 3, 10, 3600); // in an hour
 *
 * Both return the task's id, and throw if nothing was added. They neither begin nor commit: in your own transaction
 * your rows and the task are added together, or none of them (with InnoDB tables), as page.php shows. Read
 * $pdo->lastInsertId() of your own row before you add a task: a task has an id, too.
 *
 * Arguments become JSON: names are passed by name, ['a', 'b'] by position, [] is none. array_filter() leaves gaps in a
 * list: use array_values(). An empty array inside arguments is an empty list; for an empty dict write new stdClass.
 *
 * For PHP 7.3 and later. The database user needs only INSERT, on the columns of ADD_TASK and, for a delay, ADD_DELAYED.
 */

const ADD_TASK = 'INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)';
// Status 5 waits for due_at, by the database's clock. NOW() + INTERVAL fails in the night when clocks go forward.
const ADD_DELAYED = 'INSERT INTO jobs_queue (task, args, group_id, priority, status, due_at)
                     VALUES (?, ?, ?, ?, 5, FROM_UNIXTIME(UNIX_TIMESTAMP() + ?))';

function add_task_by_pdo(
    PDO $pdo, string $task, array $args = [], int $group_id = 0, int $priority = 0, int $delay_seconds = 0
): int {
    $insert = $pdo->prepare($delay_seconds > 0 ? ADD_DELAYED : ADD_TASK);
    if (!$insert || !$insert->execute(task_values($task, $args, $group_id, $priority, $delay_seconds))) {
        throw new RuntimeException('The task was not added: ' . ($insert ?: $pdo)->errorInfo()[2]);
    }
    return (int) $pdo->lastInsertId();
}

function add_task_by_mysqli(
    mysqli $db, string $task, array $args = [], int $group_id = 0, int $priority = 0, int $delay_seconds = 0
): int {
    $values = task_values($task, $args, $group_id, $priority, $delay_seconds);
    $insert = $db->prepare($delay_seconds > 0 ? ADD_DELAYED : ADD_TASK);
    if (!$insert || !$insert->bind_param($delay_seconds > 0 ? 'ssiii' : 'ssii', ...$values) || !$insert->execute()) {
        throw new RuntimeException('The task was not added: ' . ($insert ?: $db)->error);
    }
    return $insert->insert_id;
}

function task_values(string $task, array $args, int $group_id, int $priority, int $delay_seconds): array
{
    // json_encode writes text beyond ASCII as \u…, so it arrives whole in every character set of a connection.
    $json = $args ? json_encode($args, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) : null;
    $values = [$task, $json, $group_id, $priority];
    return $delay_seconds > 0 ? array_merge($values, [$delay_seconds]) : $values;
}

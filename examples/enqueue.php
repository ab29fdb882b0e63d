<?php
/*
 * Adds tasks from any PHP page, on the connection that the page has: PDO or mysqli. Copy it outside the web folder.
 *
 *     require '/home/you/enqueue.php';
 *     add_task_by_pdo($pdo, 'tasks.send_letter', ['to' => 'a@example.org'], 3, 10);         // group 3, priority 10
 *     add_task_by_mysqli($db, 'tasks.send_letter', ['to' => 'a@example.org'], 3, 10, 3600); // in an hour
 *
 * Both return the task's id, and throw when nothing was added. They begin and commit nothing: inside a transaction of
 * yours the task stands or falls with your own rows (InnoDB's; MyISAM tables know no transactions), as page.php shows.
 * Read $pdo->lastInsertId() of your own row before you add a task, which has an id too.
 *
 * Arguments become JSON. With names they are passed by name, ['a', 'b'] by position, [] is none. A list with gaps,
 * which array_filter() leaves, must go through array_values(). Inside arguments an empty array is an empty list;
 * where the task expects an empty dict, write new stdClass.
 *
 * For PHP 7.3 and later. The database user needs the right to INSERT into the columns that ADD_TASK names, into those of
 * ADD_DELAYED if tasks are to wait, and no other.
 */

const ADD_TASK = 'INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)';
// Status 5 waits for due_at, by the database's clock. Not as NOW() + INTERVAL, which fails in the night when the
// clocks of the server's time zone go forward: the hour that is left out is no valid time.
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
    // Text beyond ASCII is written as \u…, so that it arrives whole whatever character set the connection has.
    $json = $args ? json_encode($args, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) : null;
    $values = [$task, $json, $group_id, $priority];
    return $delay_seconds > 0 ? array_merge($values, [$delay_seconds]) : $values;
}

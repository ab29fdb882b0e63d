<?php
/*
 * Several steps one after the other, from any PHP page. Copy it outside the web folder.
 *
 *     require '/home/you/chains.php';
 *     // One task with three steps: each gets what the one before it returned.
 *     add_pipeline($pdo, ['tasks.shrink', ['task' => 'tasks.upload', 'group_id' => 5], 'tasks.announce'], ['beach.jpg']);
 *     // A task that starts when two others are done.
 *     $bill = add_task($pdo, 'tasks.charge_card', ['order' => 17]);
 *     $slip = add_task($pdo, 'tasks.print_slip', ['order' => 17]);
 *     add_after($pdo, [$bill, $slip], 'tasks.send_letter', ['to' => 'a@example.org']);
 *
 * Inside a transaction of yours all of it stands or falls with your own rows; else add_after makes one of its own, since
 * no worker may see the task before it sees what it waits for. Arguments are as in enqueue.php.
 *
 * For PHP 7.3 and later, with PDO and ERRMODE_EXCEPTION. It needs the right to INSERT, for add_after on
 * jobs_queue_dependencies, too.
 */

/** The id of the task, for add_after. */
function add_task(PDO $pdo, string $task, array $args): int
{
    $pdo->prepare('INSERT INTO jobs_queue (task, args) VALUES (?, ?)')->execute([$task, args_as_json($args)]);
    return (int) $pdo->lastInsertId();
}

/** Each stage is the name of a callable, or an array with task, and with group_id, priority, max_attempts if you wish. */
function add_pipeline(PDO $pdo, array $stages, array $args): int
{
    // Each says all that is its own: what it left out would stay as the stage before it had it.
    $stages = array_map(
        function ($stage) {
            return (is_array($stage) ? $stage : ['task' => $stage]) + ['group_id' => 0, 'priority' => 0];
        },
        array_values($stages)
    );
    $first = $stages[0];
    $pdo->prepare('INSERT INTO jobs_queue (task, args, group_id, priority, max_attempts, stages) VALUES (?, ?, ?, ?, ?, ?)')
        ->execute([
            $first['task'],
            args_as_json($args),
            $first['group_id'],
            $first['priority'],
            $first['max_attempts'] ?? null,
            json_encode($stages, JSON_THROW_ON_ERROR),
        ]);
    return (int) $pdo->lastInsertId();
}

/** The task starts when all of these are done, which were added before it. */
function add_after(PDO $pdo, array $ids, string $task, array $args): int
{
    $is_own = !$pdo->inTransaction();
    if ($is_own) {
        $pdo->beginTransaction();
    }
    try {
        // Status 5 with the present instant: a worker looks what it waits for.
        $pdo->prepare('INSERT INTO jobs_queue (task, args, status, due_at) VALUES (?, ?, 5, NOW(6))')
            ->execute([$task, args_as_json($args)]);
        $child = (int) $pdo->lastInsertId();
        $insert = $pdo->prepare('INSERT INTO jobs_queue_dependencies (parent_id, child_id) VALUES (?, ?)');
        foreach (array_unique($ids) as $id) {
            $insert->execute([$id, $child]);
        }
        if ($is_own) {
            $pdo->commit();
        }
        return $child;
    } catch (Throwable $error) {
        if ($is_own && $pdo->inTransaction()) {
            $pdo->rollBack();
        }
        throw $error;
    }
}

function args_as_json(array $args): ?string
{
    return $args ? json_encode($args, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) : null;
}

<?php
/*
 * Adds tasks from a Laravel site, on its own connection, such as app/tasks.php ("files" of composer.json's autoload).
 * The table jobs_queue is taskserver's; Laravel's own queue has another one, called jobs.
 *
 *     DB::transaction(function () use ($customer) {    // the order and its task, or neither
 *         $order = DB::table('orders')->insertGetId(['customer' => $customer]);
 *         add_task('tasks.confirm_order', ['order' => $order], 3);
 *     });
 *
 * A `prefix` in config/database.php holds for this table too: then name the queue so, with TASKSERVER_TABLE.
 */

use Illuminate\Support\Facades\DB;

/** Adds a task, and returns its id. It throws as every query does, and Laravel logs that. */
function add_task(
    string $task, array $args = [], int $groupId = 0, int $priority = 0, int $delaySeconds = 0
): int {
    $values = [
        'task' => $task,
        'args' => $args ? json_encode($args, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) : null,
        'group_id' => $groupId,
        'priority' => $priority,
    ];
    if ($delaySeconds > 0) {
        $values['status'] = 5; // waits for due_at
        // By the database's clock; on MySQL not as NOW() + INTERVAL, which fails when the clocks go forward.
        $values['due_at'] = DB::raw(
            DB::getDriverName() === 'pgsql'
                ? "now() + make_interval(secs => $delaySeconds)"
                : "FROM_UNIXTIME(UNIX_TIMESTAMP() + $delaySeconds)"
        );
    }
    return DB::table('jobs_queue')->insertGetId($values);
}

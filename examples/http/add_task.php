<?php
/**
 * Adds a task over HTTP, where the page cannot reach the database: see docs/page.md. Needs PHP's curl.
 *
 *     require '/home/you/add_task.php';
 *     $ids = add_task_over_http('tasks.send_letter', ['to' => 'a@example.org'], 3, 'letter-' . $order_id);
 */

const TASKS_URL = 'https://your-site.example/queue/tasks';
const TASKS_TOKEN = 'the-token';

/** $args by name, or as a list. The ids of the task; an exception says why it was not added. The same $key adds once, however often it is sent. */
function add_task_over_http(string $task, array $args, int $group_id = 0, ?string $key = null): array
{
    $headers = ['X-Taskserver-Token: ' . TASKS_TOKEN, 'Content-Type: application/json'];
    if ($key !== null) {
        $headers[] = 'Idempotency-Key: ' . $key;
    }
    $request = curl_init(TASKS_URL);
    curl_setopt_array($request, [
        CURLOPT_POSTFIELDS => json_encode(
            ['task' => $task, 'args' => $args ?: null, 'group_id' => $group_id],
            JSON_THROW_ON_ERROR
        ),
        CURLOPT_HTTPHEADER => $headers,
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 10,
    ]);
    $answer = curl_exec($request);
    $code = curl_getinfo($request, CURLINFO_RESPONSE_CODE);
    if ($answer === false || $code !== 201) {
        // With a key, it may be sent again: at 0 (no answer), 429 and 503.
        throw new RuntimeException("no task was added: $code " . ($answer === false ? curl_error($request) : $answer), $code);
    }
    return json_decode($answer)->ids;
}

<?php
/*
 * A page with a progress bar. Its button adds a task; then the page asks twice a second how far the task is. Without
 * JavaScript it reloads every two seconds. Copy it into the web folder. In tasks.py:
 *
 *     import time
 *     import taskserver
 *
 *     def make_report():
 *         for day in range(30):
 *             taskserver.progress(day, 30, f"day {day + 1}")
 *             time.sleep(0.1)
 *         taskserver.progress(30, 30)
 *         return "30 days"
 *
 * The id stays in the session, so nobody can see the task of another visitor. The time when it was added stays there,
 * too, since old servers reuse an id after a restart. The worker runs in mode move or mark: in mode delete a done task
 * leaves no trace.
 *
 * For PHP 7.3 and later. The database user needs INSERT, and SELECT on these columns:
 *
 *     GRANT SELECT (id, task, created_at, status, progress, result) ON you_site.jobs_queue TO 'you_web'@'localhost';
 *     GRANT SELECT (done_id, id, task, created_at, status, progress, result)
 *         ON you_site.jobs_queue_done TO 'you_web'@'localhost';
 */
const TASK = 'tasks.make_report';
const STATES = ['waiting', 'running', 'done', 'waiting', 'failed', 'waiting']; // by status

try {
    session_start(['use_strict_mode' => true, 'cookie_httponly' => true, 'cookie_samesite' => 'Lax']);
    $pdo = new PDO('mysql:host=localhost;dbname=you_site;charset=utf8mb4', 'you_web', 'web-password');
    $pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);

    if ($_SERVER['REQUEST_METHOD'] === 'POST') {
        if (in_array(state($pdo, $_SESSION['report'] ?? null)['state'], ['none', 'done', 'failed'], true)) {
            $_SESSION['report'] = add_report($pdo); // one at a time for each visitor
        }
        // Not the path that was asked for: one that begins with // would lead to another host.
        header('Location: /' . ltrim($_SERVER['SCRIPT_NAME'], '/'), true, 303);
        exit;
    }
    $report = $_SESSION['report'] ?? null;
    session_write_close(); // or the visitor's next request would wait for this one
    header('Cache-Control: no-store');
    $now = state($pdo, $report);
} catch (Throwable $error) {
    error_log('report: ' . $error->getMessage()); // its whole text could hold the password
    http_response_code(500);
    exit('Something went wrong. Please try again later.');
}

/** The id of the new task, and when it was added, by which it is known. */
function add_report(PDO $pdo): array
{
    $pdo->beginTransaction(); // no worker sees the task yet, and moves it
    $pdo->prepare('INSERT INTO jobs_queue (task) VALUES (?)')->execute([TASK]);
    $id = (int) $pdo->lastInsertId();
    $added = $pdo->query("SELECT UNIX_TIMESTAMP(created_at) FROM jobs_queue WHERE id = $id")->fetchColumn();
    $pdo->commit();
    return ['id' => $id, 'added' => (string) $added];
}

/** What the visitor may know of it: state, value of the bar (null: not known), text, result. */
function state(PDO $pdo, ?array $report): array
{
    $row = null;
    foreach ($report ? ['jobs_queue', 'jobs_queue_done'] : [] as $table) { // in the order in which it moves
        $select = $pdo->prepare(
            "SELECT status, progress, result FROM $table WHERE id = ? AND task = ? AND UNIX_TIMESTAMP(created_at) = ?"
        );
        $select->execute([$report['id'], TASK, $report['added']]);
        if ($row = $select->fetch(PDO::FETCH_ASSOC)) {
            break;
        }
    }
    $state = $row ? STATES[$row['status']] ?? 'failed' : 'none';
    $told = json_decode($row['progress'] ?? 'null', true); // a row may hold anything
    $done = number($told['done'] ?? 0);
    $total = number($told['total'] ?? 0);
    $result = json_decode($row['result'] ?? 'null', true);
    return [
        'state' => $state,
        'value' => $state === 'done' ? 1 : ($total > 0 ? min($done / $total, 1) : null),
        'text' => is_string($told['text'] ?? null) ? $told['text'] : '',
        'result' => is_string($result) ? $result : '',
    ];
}

function number($value): float
{
    return is_int($value) || is_float($value) && is_finite($value) ? (float) max($value, 0) : 0.0;
}

function escaped(string $text): string
{
    return htmlspecialchars($text, ENT_QUOTES | ENT_SUBSTITUTE, 'UTF-8');
}

$goes_on = in_array($now['state'], ['waiting', 'running'], true);
?>
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Your report</title>
<?php if ($goes_on) { ?>
<noscript><meta http-equiv="refresh" content="2"></noscript>
<?php } ?>
<h1>Your report</h1>
<main id="report">
<p id="state"><?= escaped($now['state']) ?></p>
<?php if ($now['state'] !== 'none') { ?>
<progress id="bar" max="1"<?= $now['value'] === null ? '' : " value=\"{$now['value']}\"" ?>></progress>
<p id="text"><?= escaped($now['text']) ?></p>
<p id="result"><?= escaped($now['result']) ?></p>
<?php } ?>
<form method="post"><button id="button"<?= $goes_on ? ' disabled' : '' ?>>Make a report</button></form>
</main>
<?php if ($goes_on) { ?>
<script>
async function ask() {
    try {
        const answer = await fetch('', {cache: 'no-store'});
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
        if (answer.ok) {
            document.getElementById('report').replaceWith(page.getElementById('report'));
        }
    } catch (error) {
        // The network is away for a moment.
    }
    if (document.getElementById('button').disabled) {
        setTimeout(ask, 500);
    }
}

ask();
</script>
<?php } ?>

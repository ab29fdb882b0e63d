<?php
/*
 * A page with a progress bar. Its button adds a task; the page then asks itself twice a second, as ?json, how far that one
 * has come. Without JavaScript it loads anew every two seconds. Copy it into the web folder. In tasks.py:
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
 * The id stays in the session, so nobody can ask for a task of another visitor; and with it the instant at which the task
 * was added, since old servers give an id again after a restart. The worker runs in mode move or mark: in mode delete
 * nobody can tell what is done.
 *
 * For PHP 7.3 and later. Beside the right to INSERT it needs that to SELECT, on these columns alone:
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

if (isset($_GET['json'])) {
    header('Content-Type: application/json');
    exit(as_json($now));
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

/** What the visitor may know of it: state, done, total, text, result. */
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
    $told = json_decode($row['progress'] ?? 'null', true);
    $told = is_array($told) ? $told : [];
    return [
        'state' => $row ? STATES[$row['status']] ?? 'failed' : 'none',
        'done' => number($told['done'] ?? 0),
        'total' => number($told['total'] ?? 0), // 0: not known
        'text' => is_string($told['text'] ?? null) ? $told['text'] : '',
        'result' => json_decode($row['result'] ?? 'null', true),
    ];
}

/** A row may hold anything. */
function number($value): float
{
    return is_int($value) || is_float($value) && is_finite($value) ? (float) max($value, 0) : 0.0;
}

/** Harmless inside a <script>, too. */
function as_json($value): string
{
    return json_encode($value, JSON_HEX_TAG | JSON_HEX_AMP | JSON_INVALID_UTF8_SUBSTITUTE | JSON_PARTIAL_OUTPUT_ON_ERROR);
}

function escaped(string $text): string
{
    return htmlspecialchars($text, ENT_QUOTES | ENT_SUBSTITUTE, 'UTF-8');
}

$goes_on = in_array($now['state'], ['waiting', 'running'], true);
$result = is_string($now['result']) ? $now['result'] : '';
?>
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Your report</title>
<?php if ($goes_on) { ?>
<noscript><meta http-equiv="refresh" content="2"></noscript>
<?php } ?>
<h1>Your report</h1>
<p id="state"><?= escaped($now['state']) ?></p>
<?php if ($now['state'] !== 'none') { ?>
<progress id="bar" max="1"<?php
    // Without a value a bar shows that something goes on, and not how far it is.
    if ($now['state'] === 'done') {
        echo ' value="1"';
    } elseif ($now['total'] > 0) {
        echo ' value="' . min($now['done'] / $now['total'], 1) . '"';
    } ?>></progress>
<p id="text"><?= escaped($now['text']) ?></p>
<p id="result"><?= escaped($result) ?></p>
<?php } ?>
<form method="post"><button id="button"<?= $goes_on ? ' disabled' : '' ?>>Make a report</button></form>
<?php if ($goes_on) { ?>
<script>
const element = id => document.getElementById(id);

function show(now) {
    element('state').textContent = now.state; // as text: nothing in it becomes HTML
    element('text').textContent = now.text;
    element('result').textContent = typeof now.result === 'string' ? now.result : '';
    if (now.state === 'done') {
        element('bar').setAttribute('value', 1);
    } else if (now.total > 0) {
        element('bar').setAttribute('value', Math.min(now.done / now.total, 1));
    } else {
        element('bar').removeAttribute('value');
    }
    const goesOn = now.state === 'waiting' || now.state === 'running';
    element('button').disabled = goesOn;
    return goesOn;
}

async function ask() {
    let goesOn = true;
    try {
        const answer = await fetch('?json', {cache: 'no-store'});
        goesOn = !answer.ok || show(await answer.json());
    } catch (error) {
        // The network is away for a moment.
    }
    if (goesOn) {
        setTimeout(ask, 500);
    }
}

ask();
</script>
<?php } ?>

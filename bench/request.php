<?php
/* The page of bench/request.py in PHP: the same answer with and without a task added. */
$way = trim($_SERVER['REQUEST_URI'], '/');
if ($way !== 'nothing') {
    $pdo = new PDO(
        'mysql:host=127.0.0.1;port=3306;dbname=bench;charset=utf8mb4', 'root', '',
        [PDO::ATTR_PERSISTENT => $way === 'kept', PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]
    );
    $pdo->prepare('INSERT INTO bench_request (task, args, group_id, priority) VALUES (?, ?, ?, ?)')
        ->execute(['tasks.nothing', json_encode(['to' => 'reader@example.org']), 3, 10]);
}
header('Content-Type: text/plain');
echo 'Thank you!';

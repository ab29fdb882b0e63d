"""taskserver's INSERT from PHP, to be read beside Laravel's dispatch()."""

from __future__ import annotations

from dataclasses import replace

from .ours import PEERS as OURS

PROGRAM = """<?php
/* As docs/php.md shows it: one prepared statement, a commit for each task. */
foreach (['HOST', 'PORT', 'DATABASE', 'USER', 'PASSWORD', 'TASK'] as $name) {
    $at[$name] = getenv("BENCH_$name");
}
$db = new PDO("mysql:host=$at[HOST];port=$at[PORT];dbname=$at[DATABASE];charset=utf8mb4", $at['USER'], $at['PASSWORD']);
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);

$begun = microtime(true);
$insert = $db->prepare('INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)');
for ($n = 0; $n < $argv[1]; $n++) {
    $insert->execute(["tasks.$at[TASK]", json_encode(['n' => $n], JSON_THROW_ON_ERROR), 3, 10]);
}
echo microtime(true) - $begun, "\\n";
"""

BASE = next(peer for peer in OURS if peer.base == "mysql")
PEERS = [
    replace(
        BASE,
        name="taskserver, INSERT from PHP",
        debian="php-cli php-mysql",
        files={**BASE.files, "add.php": PROGRAM},
        commands={**BASE.commands, "add": "php add.php {count}"},
        notes=("PDO, as docs/php.md shows it; the worker is the same",),
        skips=("add_many", "drain_1", "drain_2", "drain_4", "million", "empty_cpu", "empty_memory", "kills"),
    )
]

"""Action Scheduler, WooCommerce's queue, in a WordPress without other plugins."""

from __future__ import annotations

from dataclasses import replace

from .peer import REPOSITORY, Peer, Safety

PROGRAM = r"""<?php
/* php program.php install | add COUNT | work: Debian's WordPress with a wp-content and a database of its own. */
$_SERVER += ['HTTP_HOST' => '127.0.0.1', 'REQUEST_URI' => '/'];
define('ABSPATH', getenv('BENCH_WORDPRESS') . '/');
define('WP_CONTENT_DIR', __DIR__ . '/wp-content');
define('DB_HOST', getenv('BENCH_HOST') . ':' . getenv('BENCH_PORT'));
define('DB_NAME', getenv('BENCH_DATABASE'));
define('DB_USER', getenv('BENCH_USER'));
define('DB_PASSWORD', getenv('BENCH_PASSWORD'));
define('DB_CHARSET', 'utf8mb4');
define('DB_COLLATE', '');
define('DISABLE_WP_CRON', true);
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('WP_INSTALLING', $argv[1] === 'install');
$table_prefix = 'wp_';
require ABSPATH . 'wp-settings.php';

if ($argv[1] === 'install') {
    require ABSPATH . 'wp-admin/includes/upgrade.php';
    wp_install('A site', 'admin', 'a@example.org', false, '', 'password');
    update_option('action_scheduler_migration_status', 'complete'); // as on a site that is some minutes old
    passthru(escapeshellarg(PHP_BINARY) . ' program.php work', $status); // makes its tables
    exit($status);
}
if ($argv[1] === 'add') {
    $begun = microtime(true);
    for ($n = 0; $n < $argv[2]; $n++) {
        as_enqueue_async_action('bench_' . getenv('BENCH_TASK'), [$n]);
    }
    echo microtime(true) - $begun, "\n";
} else {
    do_action('action_scheduler_run_queue', 'WP Cron'); // all that wp-cron.php calls for it
}
"""
PLUGIN = r"""<?php
if (wp_installing()) {
    function wp_mail() // WordPress would send the new administrator a letter
    {
        return true;
    }
    return;
}
require getenv('BENCH_SOURCE') . '/action-scheduler.php';
$calls = fopen(getenv('BENCH_CALLS'), 'a');
add_action('bench_nothing', fn () => fwrite($calls, '.'));
add_action('bench_effect', function ($n) use ($calls) {
    usleep(2500);
    $GLOBALS['wpdb']->insert('effects', ['n' => $n]);
    usleep(2500);
    fwrite($calls, '.');
});
add_filter('action_scheduler_queue_runner_batch_size', fn () => (int) getenv('BENCH_BATCH'));
add_filter('action_scheduler_queue_runner_concurrent_batches', fn () => 100);
add_filter('action_scheduler_timeout_period', fn () => 60);
add_filter('action_scheduler_failure_period', fn () => 60);
"""
COLUMNS = ["hook", "status", "scheduled_date_gmt", "scheduled_date_local", "args", "schedule", "group_id", "priority"]

BASE = Peer(
    name="Action Scheduler",
    base="mysql",
    repository="https://github.com/woocommerce/action-scheduler",
    packages="action-scheduler==3.8.2",
    debian="php-cli php-mysql",
    files={"program.php": PROGRAM, "wp-content/mu-plugins/bench.php": PLUGIN},
    commands={
        "install": "php program.php install",
        "add": "php program.php add {count}",
        "add_many": "php program.php add {count}",
        "work": "php program.php work",
        "empty": "php program.php work",
    },
    tables=("wp_actionscheduler_actions", "wp_actionscheduler_claims", "wp_actionscheduler_logs"),
    copied={name: name for name in COLUMNS},
    unfinished="SELECT COUNT(*) FROM wp_actionscheduler_actions "
    "WHERE status IN ('pending', 'in-progress') AND hook LIKE 'bench%'",
    safety=Safety(durable=True, survives=False, runs="at most once"),
    environment={
        "BENCH_WORDPRESS": str(REPOSITORY / ".servers/wordpress/usr/share/wordpress"),
        "BENCH_SOURCE": "{FOLDER}",
        "BENCH_BATCH": "25",
    },
    notes=(
        "a version of 2024, in Debian's WordPress 6.1 (it asks for 6.4), without other plugins; a site loads more for "
        "each start, but its pages have PHP's code compiled",
        "each claim sorts all tasks that wait: with 1,000,000 the four seconds have so few claims that the figure is "
        "about a third too high",
        "a worker is what wp-cron.php calls: it ends after 30 s; as many at once as here need a filter, by default "
        "there is one",
        "the task of a killed worker is marked as failed after 60 s, and others that it had claimed run then; by "
        "default after 5 minutes, in which no task runs",
        "it keeps done tasks for 31 days, with three lines of log for each",
        "it adds only one by one",
    ),
    skips=("add_many",),
)
PEERS = [
    BASE,
    replace(
        BASE,
        name="Action Scheduler, batches of 100",
        environment={**BASE.environment, "BENCH_BATCH": "100"},
        notes=("it claims 25 by default, WP-CLI's runner 100",),
        skips=("add", "add_many", "empty_cpu", "empty_memory", "kills"),
    ),
]

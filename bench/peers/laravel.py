"""Laravel's database queue, from Debian's packages, beside our own INSERT from PHP."""

from __future__ import annotations

from .peer import Peer, Safety

ARTISAN = r"""<?php
/* The artisan of a site, with one job and the commands that add it. Laravel's classes come from Debian's folder. */
namespace Bench;

error_reporting(E_ALL & ~E_DEPRECATED); // Debian's PHP is newer than its Laravel
require 'Illuminate/autoload.php';

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Console\Kernel;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Application;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;
use Illuminate\Support\Facades\Artisan;
use Illuminate\Support\Facades\DB;
use Illuminate\Support\Facades\Queue;
use Symfony\Component\Console\Input\ArgvInput;
use Symfony\Component\Console\Output\ConsoleOutput;

class Work implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public function __construct(private int $n, private bool $effect)
    {
    }

    public function handle(): void
    {
        if ($this->effect) {
            usleep(2500);
            DB::insert('INSERT INTO effects (n) VALUES (?)', [$this->n]);
            usleep(2500);
        }
        fwrite($GLOBALS['calls'], '.');
    }
}

$calls = fopen(getenv('BENCH_CALLS'), 'a');
$app = new Application(__DIR__);
$app->singleton(Kernel::class, \Illuminate\Foundation\Console\Kernel::class);
$app->singleton(ExceptionHandler::class, \Illuminate\Foundation\Exceptions\Handler::class);
$kernel = $app->make(Kernel::class);
$kernel->command('bench:install', function () {
    foreach (['queue:table', 'queue:failed-table', 'migrate'] as $command) {
        Artisan::call($command, $command === 'migrate' ? ['--force' => true] : []);
    }
});
$kernel->command('bench:add {verb} {count}', function () {
    $effect = getenv('BENCH_TASK') === 'effect';
    $count = (int) $this->argument('count');
    $begun = microtime(true);
    if ($this->argument('verb') === 'add') {
        for ($n = 0; $n < $count; $n++) {
            Work::dispatch($n, $effect);
        }
    } else {
        for ($n = 0; $n < $count; $n += 1000) {
            Queue::bulk(array_map(fn ($n) => new Work($n, $effect), range($n, min($count, $n + 1000) - 1)));
        }
    }
    echo microtime(true) - $begun, "\n";
});
exit($kernel->handle(new ArgvInput, new ConsoleOutput));
"""
# In the place and form of what `artisan config:cache` writes. All values are those of a new site, whose other providers
# a queue does not need.
CONFIG = """<?php
return [
    'app' => ['env' => 'production', 'timezone' => 'UTC', 'providers' => array_map(
        fn ($name) => "Illuminate\\\\{$name}ServiceProvider",
        ['Bus\\Bus', 'Cache\\Cache', 'Foundation\\Providers\\ConsoleSupport', 'Database\\Database',
         'Filesystem\\Filesystem', 'Queue\\Queue']
    )],
    'cache' => ['default' => 'file', 'stores' => ['file' => ['driver' => 'file', 'path' => 'cache']]],
    'database' => ['default' => 'mysql', 'migrations' => 'migrations', 'connections' => ['mysql' => [
        'driver' => 'mysql', 'host' => getenv('BENCH_HOST'), 'port' => getenv('BENCH_PORT'), 'prefix' => '',
        'database' => getenv('BENCH_DATABASE'), 'username' => getenv('BENCH_USER'),
        'password' => getenv('BENCH_PASSWORD'), 'charset' => 'utf8mb4', 'collation' => 'utf8mb4_unicode_ci',
        'strict' => true,
    ]]],
    'queue' => ['default' => 'database', 'connections' => ['database' => [
        'driver' => 'database', 'table' => 'jobs', 'queue' => 'default', 'retry_after' => 90,
    ]], 'failed' => ['driver' => 'database-uuids', 'database' => 'mysql', 'table' => 'failed_jobs']],
];
"""

PEERS = [
    Peer(
        name="Laravel",
        base="mysql",
        debian="php-laravel-framework php-mysql",
        files={"artisan": ARTISAN, "bootstrap/cache/config.php": CONFIG, "database/migrations/.keep": ""},
        commands={
            "install": "php artisan bench:install",
            "add": "php artisan bench:add add {count}",
            "add_many": "php artisan bench:add add_many {count}",
            "work": "php artisan queue:work --tries=3 --quiet",
            "empty": "php artisan queue:work --tries=3 --stop-when-empty --sleep=0",
        },
        tables=("jobs", "failed_jobs"),
        copied={
            "queue": "queue",
            "payload": "payload",
            "attempts": "attempts",
            "available_at": "available_at",
            "created_at": "created_at",
        },
        unfinished="SELECT COUNT(*) FROM jobs",
        safety=Safety(durable=True, survives=True, runs="at least once"),
        notes=(
            "artisan queue:work with all defaults but --tries=3, as its documentation shows: by default the task of a "
            "killed worker fails",
            "that task runs again after retry_after = 90 s, the default; so does a task that takes longer",
            "it adds by dispatch(), and by Queue::bulk() of 1,000 jobs, which is one INSERT",
            "only the six service providers that a queue needs: a real site loads more at each start",
            "the newest Laravel takes a task by the same statements",
        ),
    )
]

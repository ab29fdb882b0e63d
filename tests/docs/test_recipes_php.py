"""docs/php.md and docs/wordpress.md: real PHP, the real wp_mail, and what WP-CLI and Artisan do with arguments.

Neither WP-CLI nor a whole Laravel can be had as a package here: a script stands for WP-CLI, which takes words and fails
as it does; and another for Artisan, whose console is Laravel's own, that of Symfony.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taskserver import Status
from tests.conftest import without
from tests.support.documents import blocks
from tests.support.mail import Sendmail
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.websites import WordPress
from tests.support.work import PHP, WORDPRESS, home, paste

CONSOLE = Path("/usr/share/php/Symfony/Component/Console/autoload.php")


@pytest.fixture
def queue(sqlite_queue: Queue, php: str) -> Queue:
    """Of a site whose /home/you has the page's scripts."""
    for block in blocks(PHP) + blocks(WORDPRESS):
        if "STDIN" in block.text:
            write(sqlite_queue, block.text.splitlines()[1].removeprefix("// /home/you/"), block.text)
    paste(sqlite_queue, PHP, {"/usr/bin/php": php})
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn, TASKSERVER_MODE="mark")
    return sqlite_queue


def write(queue: Queue, name: str, text: str) -> None:
    path = home(queue) / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text.replace("/home/you", str(home(queue))), encoding="utf-8")


def outcome(queue: Queue, task: str, *args: object) -> object:
    """The result of a task, or the first line of its error."""
    task_id = queue.server.add_task(f"tasks.{task}", args)
    queue.server.run()
    state = queue.server.get(task_id)
    assert state is not None
    return state.error.partition("\n")[0] if state.error else state.result


# ---- a script


def test_a_script_gives_its_answer_as_json_or_its_error_is_the_task_s(queue: Queue) -> None:
    assert outcome(queue, "make_invoice", 17) == {"file": "invoice-17.pdf"}
    error = str(outcome(queue, "make_invoice", 0))
    assert error.startswith("RuntimeError: ")
    assert "ended with code 255: Fatal error: Uncaught InvalidArgumentException: there is no order 0" in error
    write(queue, "scripts/invoice.php", "<?php echo $nothing; echo json_encode(['file' => 'a']);")
    assert outcome(queue, "make_invoice", 17) == {"file": "a"}  # a warning spoils no answer
    write(queue, "scripts/invoice.php", "<?php fwrite(STDERR, 'no such order'); exit(3);")
    assert "ended with code 3: no such order" in str(outcome(queue, "make_invoice", 17))


# ---- WordPress


def test_wp_mail_sends_a_letter_or_says_why_not(
    queue: Queue, php: str, tmp_path: Path, mysql_server: MySQLServer, mysql_dsn: str
) -> None:
    site, sendmail = home(queue) / "public_html", Sendmail(tmp_path / "sbin")
    site.mkdir()
    place = {name: getattr(mysql_server, name) for name in ("host", "port", "user", "password")}
    WordPress(site, php, place | {"database": mysql_dsn.rpartition("/")[2]})
    edits = {"/usr/bin/php": php, '"log_errors=0"': f'"log_errors=0", "-d", "sendmail_path={sendmail.program} -t -i"'}
    paste(queue, WORDPRESS, edits)
    assert outcome(queue, "wp_mail", "ada@example.org", "Grüße 🎉", "Liebe Ada,\nalles Gute.") is None
    assert sendmail.letter["To"] == "ada@example.org"
    assert sendmail.letter["Subject"] == "Grüße 🎉"
    assert sendmail.letter.get_content().split("\r\n")[:2] == ["Liebe Ada,", "alles Gute."]
    sendmail.refuse(75)
    error = outcome(queue, "wp_mail", "ada@example.org", "Hello", "Again.")
    assert "ended with code 1: " in str(error)
    assert "Could not instantiate mail function." in str(error)
    assert queue.statuses() == [Status.DONE, Status.ERROR]


# ---- WP-CLI and Artisan

WP = """<?php
if (in_array('404', $argv)) {
    fwrite(STDERR, "Error: Invalid post ID.\\n");
    exit(1);
}
file_put_contents(__DIR__ . '/called', json_encode(array_slice($argv, 1)));
"""


def test_wp_cli_gets_numbers_alone_and_its_error_is_the_tasks(queue: Queue, php: str) -> None:
    write(queue, "bin/wp", WP)
    paste(queue, WORDPRESS, {"/usr/bin/php": php})
    assert outcome(queue, "publish_post", 17) is None
    path = f"--path={home(queue)}/public_html"
    called = home(queue) / "bin" / "called"
    assert json.loads(called.read_text()) == [path, "--no-color", "post", "update", "17", "--post_status=publish"]
    assert str(outcome(queue, "publish_post", 404)).endswith("ended with code 1: Error: Invalid post ID.")
    called.unlink()
    assert str(outcome(queue, "publish_post", "--exec=phpinfo();")).startswith("ValueError")
    assert not called.exists()


ARTISAN = """<?php
require '%s';

use Symfony\\Component\\Console\\Input\\{InputArgument, InputOption};

$command = new Symfony\\Component\\Console\\Command\\Command('report:send');
$command->addArgument('customer', InputArgument::REQUIRED)->addOption('month', null, InputOption::VALUE_REQUIRED);
$command->setCode(function ($input, $output) {
    if ($input->getArgument('customer') === 'nobody') {
        throw new RuntimeException('There is no such customer.');
    }
    $output->write($input->getArgument('customer') . ' in ' . $input->getOption('month'));
    return $input->isInteractive() ? 2 : 0;
});
$artisan = new Symfony\\Component\\Console\\Application();
$artisan->add($command);
$artisan->run();
"""


def test_artisan_takes_whatever_a_row_says_as_an_argument_and_its_code_counts(queue: Queue) -> None:
    if not CONSOLE.exists():
        without("the console of Symfony is not there")
    write(queue, "shop/artisan", ARTISAN % CONSOLE)
    assert outcome(queue, "send_report", "Ada Müller", 5) == "Ada Müller in 5"
    assert outcome(queue, "send_report", "--month=7", 5) == "--month=7 in 5"
    error = str(outcome(queue, "send_report", "nobody", 5))
    assert "ended with code 1" in error
    assert "There is no such customer." in error

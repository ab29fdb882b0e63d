"""Tasks of the site, as its developers write them."""

# mypy: disable-error-code="import-not-found, untyped-decorator"

import asyncio
import time
from typing import Any

from django.tasks import TaskContext, task

import taskserver
from shop.models import Order
from shop.unlisted import imported  # noqa: F401

ran: list[Any] = []


@task
def greet(name: str, greeting: str = "Hello") -> str:
    ran.append(name)
    return f"{greeting}, {name}"


@task(priority=5, queue_name="mail")
def send_letter(to: str) -> None:
    ran.append(to)


@task
async def later(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@task(takes_context=True)
def tell(context: TaskContext, word: str = "", mark: str = "") -> list[Any]:
    result, said = context.task_result, word + mark
    return [context.attempt, result.id, result.status, result.enqueued_at is not None, len(result.worker_ids), said]


@task(takes_context=True)
@taskserver.task(max_attempts=2, backoff="fixed:1")
def fail(context: TaskContext, number: int) -> None:
    raise ArithmeticError(f"{number} in attempt {context.attempt}")


@task
@taskserver.task(max_attempts=1, timeout=0.5)
def sleep() -> None:
    time.sleep(30)


@task
@taskserver.task(max_attempts=1, timeout=0.5)
async def sleep_awaited() -> None:
    await asyncio.sleep(30)


@task
@taskserver.task(max_attempts=2, timeout=0.5, retry_on=ArithmeticError)
def sleep_again() -> None:
    time.sleep(30)


@task
@taskserver.task(max_attempts=2)
def wait_for_cancel() -> None:
    while True:
        time.sleep(0.01)


@task
def order(customer: str) -> int:
    return int(Order.objects.create(customer=customer).pk)


@task
@taskserver.task(transactional=True)
def order_exactly_once(customer: str) -> None:
    taskserver.connection().cursor().execute(f"INSERT INTO shop_order (customer) VALUES ('{customer}')")


@task
@taskserver.task(commit_every=10)
def note(text: str) -> str:
    return text


@task
async def order_awaited(customer: str) -> int:
    return int((await Order.objects.acreate(customer=customer)).pk)


def plain() -> None:
    """No task of Django's."""

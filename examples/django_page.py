"""Adds tasks from a Django site, by its own connection to MySQL, MariaDB or PostgreSQL, without importing taskserver.

The INSERT is part of the site's transaction: with `atomic`, or ATOMIC_REQUESTS, the task is there once the order is,
and not at all if the order is rolled back. So `transaction.on_commit` is not needed, and would be worse: the site could
die between its commit and the task.

Where taskserver is importable, and its driver PyMySQL or psycopg too, server.add_task(…, connection=connection) does
the same, for tasks of all kinds.
"""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"

import json
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST
from shop.models import Order

ADD_TASK = "INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (%s, %s, %s, %s)"
# Status 5 waits for due_at, by the database's clock. On MySQL not as NOW() + INTERVAL, which fails when the clocks go
# forward.
ADD_DELAYED = """
    INSERT INTO jobs_queue (task, args, group_id, priority, status, due_at)
    VALUES (%s, %s, %s, %s, 5, FROM_UNIXTIME(UNIX_TIMESTAMP() + %s))
"""
IS_POSTGRESQL = connection.vendor == "postgresql"
if IS_POSTGRESQL:
    ADD_TASK += " RETURNING id"
    ADD_DELAYED = ADD_DELAYED.replace("FROM_UNIXTIME(UNIX_TIMESTAMP() + %s)", "now() + make_interval(secs => %s)")
    ADD_DELAYED += " RETURNING id"


def add_task(task: str, args: Any = None, *, group_id: int = 0, priority: int = 0, delay_seconds: int = 0) -> int:
    """Add a task; its id. `args` is a dict (keywords) or a list (positions)."""
    text = None if args is None else json.dumps(args, allow_nan=False)
    values = [task, text, group_id, priority]
    with connection.cursor() as cursor:
        if delay_seconds > 0:
            cursor.execute(ADD_DELAYED, [*values, delay_seconds])
        else:
            cursor.execute(ADD_TASK, values)
        return int(cursor.fetchone()[0] if IS_POSTGRESQL else cursor.lastrowid)


@require_POST
def order(request: HttpRequest) -> HttpResponse:
    """The order and its task, or neither. What goes wrong is Django's: a plain page, and the site's LOGGING."""
    with transaction.atomic():
        order = Order.objects.create(customer=request.POST.get("customer", ""))
        add_task("tasks.confirm_order", {"order": order.pk, "customer": order.customer}, group_id=3)
    return HttpResponse(f"Thank you! Your order has the number {order.pk}.", status=202)

"""What the site does outside of its requests. Each argument is JSON: an order's number, not the order."""

from django.core.mail import send_mail
from django.db import connection, transaction
from django.db.models import F

import taskserver

from .models import Book, Order


@taskserver.task(max_attempts=5, timeout="1m")
def confirm(order: int) -> None:
    """Send a letter. It may be sent twice, if the worker is killed right after it."""
    found = Order.objects.select_related("book").get(pk=order)
    send_mail(f"Your order {order}", f"Thank you for ordering {found.book.title}.", None, [found.email])


def reserve(order: int) -> None:
    """Take a copy out of the stock, exactly once: this and the end of the task are one transaction."""
    with transaction.atomic():
        found = Order.objects.select_related("book").get(pk=order)
        if not Book.objects.filter(pk=found.book.pk, copies__gt=0).update(copies=F("copies") - 1):
            raise taskserver.Retry(f"no copy of {found.book.title} is left", delay=3600)
        Order.objects.filter(pk=order).update(is_reserved=True)
        taskserver.complete(connection)

"""The page that takes orders."""

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from . import tasks
from .models import Book, Order
from .queue import queue


@require_POST
def order(request: HttpRequest) -> JsonResponse:
    """The order and its tasks, or none of them: all are rows of one transaction."""
    with transaction.atomic():
        book = get_object_or_404(Book, title=request.POST.get("title", ""))
        order = Order.objects.create(book=book, email=request.POST.get("email", ""))
        queue().add_task(tasks.confirm, [order.pk], connection=connection)
        queue().add_task(tasks.reserve, [order.pk], connection=connection)
    return JsonResponse({"order": order.pk}, status=201)

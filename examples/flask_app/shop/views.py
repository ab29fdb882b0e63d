"""The page that takes orders."""

from flask import Blueprint, request

from . import tasks
from .db import Order, session
from .queue import queue

pages = Blueprint("pages", __name__)


@pages.post("/orders")
def order() -> tuple[dict[str, int], int]:
    """The order and its task, or neither: both are rows of one transaction."""
    db = session()
    order = Order(title=request.form["title"])
    db.add(order)
    db.flush()
    queue().add_task(tasks.write_receipt, [order.number], connection=db)
    db.commit()
    return {"order": order.number}, 201

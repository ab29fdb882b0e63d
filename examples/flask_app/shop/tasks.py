"""What the site does outside of its requests. Each argument is JSON: an order's number, not the order."""

from flask import current_app, render_template

import taskserver

from .db import Order, session


def write_receipt(number: int) -> None:
    """Write an order's receipt, exactly once: the receipt and the end of the task are one transaction."""
    db = session()
    order = db.get_one(Order, number)
    order.receipt = render_template("receipt.txt", order=order, shop=current_app.config["SHOP_NAME"])
    db.flush()
    taskserver.complete(db)
    db.commit()

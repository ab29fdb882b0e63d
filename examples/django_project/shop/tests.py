"""Tests of the site: python manage.py test. (setUp needs Python 3.11 or newer.)"""

from django.conf import settings
from django.core import mail
from django.test import TestCase

from taskserver.testing import task_queue

from .models import Book, Order


class QueueTestCase(TestCase):
    """Each test has a queue of its own, in the place of the site's."""

    def setUp(self) -> None:
        # With the settings of the site's .env; Django is set up already.
        self.queue = self.enterContext(task_queue(folder=settings.BASE_DIR, setup=""))


class OrderTest(QueueTestCase):
    def test_an_order_sends_a_letter_and_takes_a_copy(self) -> None:
        Book.objects.create(title="Notes", copies=1)
        self.client.post("/orders", {"title": "Notes", "email": "ada@example.org"})
        self.queue.run_all()
        self.assertEqual(mail.outbox[0].to, ["ada@example.org"])
        self.assertTrue(Order.objects.get().is_reserved)

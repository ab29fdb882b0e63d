"""Books in stock, and orders of them."""

from django.db import models


class Book(models.Model):
    """A book, and how many copies of it are there."""

    title = models.CharField(max_length=100, unique=True)
    copies = models.PositiveIntegerField(default=0)


class Order(models.Model):
    """An order of one copy."""

    book = models.ForeignKey(Book, on_delete=models.PROTECT)
    email = models.EmailField()
    is_reserved = models.BooleanField(default=False)

"""The orders of the shop."""

# mypy: disable-error-code="misc"

from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100)

"""The addresses of the site."""

from django.urls import path
from shop.views import order

urlpatterns = [path("orders", order)]

"""A task in a module that TASKSERVER_MODULES does not list."""

# mypy: disable-error-code="untyped-decorator"

from django.tasks import task


@task
def imported() -> None:
    raise AssertionError("it ran")

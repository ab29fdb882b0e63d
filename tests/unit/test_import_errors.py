"""The words for why a module of the site cannot be imported: whose file is at fault, and the mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver.messages.import_errors import raised_at, why_not_imported

MODULES = {
    "a package's own error": ("\nimport broken_package\n", "own.py, line 2"),
    "a text that the standard library refuses": ("import json\n\njson.loads('{')\n", "own.py, line 3"),
}


def raised_by(code: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        code()
    return caught.value


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, one of which fails."""
    folder = tmp_path / "lib" / "site-packages"
    (folder / "broken_package").mkdir(parents=True)
    (folder / "broken_package" / "__init__.py").write_text("\n\nraise OSError('gone')\n")
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("what", MODULES)
def test_the_place_of_an_error_is_the_line_of_the_site(tmp_path: Path, what: str) -> None:
    source, place = MODULES[what]
    code = compile(source, str(tmp_path / "own.py"), "exec")
    error = raised_by(lambda: exec(code, {}))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # without this file's frames
    assert raised_at(error) == f" ({place})"


@pytest.mark.usefixtures("packages")
def test_the_place_in_a_package_has_the_name_of_the_package() -> None:
    error = raised_by(lambda: __import__("broken_package"))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert raised_at(error) == " (broken_package/__init__.py, line 3)"


def without_settings() -> object:
    from django.conf import settings

    return settings.INSTALLED_APPS


def before_apps_are_ready() -> object:
    from django.apps import apps

    apps.check_apps_ready()
    return apps


@pytest.mark.parametrize("code", [without_settings, before_apps_are_ready])
def test_a_django_that_nobody_made_ready_is_told_with_the_setting_that_does(code: Callable[[], object]) -> None:
    words = why_not_imported("shop.tasks", raised_by(code), None)
    assert words.endswith(": name a function that calls django.setup() in TASKSERVER_SETUP (docs/django.md)")

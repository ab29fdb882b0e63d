"""A PostgreSQL of a recipe, unpacked into a temporary folder, and the private server of the tests that runs from it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.contract.other_servers.fetch import NotHad, unpack
from tests.contract.other_servers.recipes import Recipe
from tests.contract.other_servers.unpacked import Unpacked
from tests.support.postgresql import PROGRAMS, PROGRAMS_VARIABLE, PostgreSQL


class OtherPostgreSQL:
    """Runs from `with` to its end, as nobody where we are root. Tests may start more servers of its version."""

    def __init__(self, recipe: Recipe, cache: Path) -> None:
        self._recipe = recipe
        self._cache = cache
        self._server: PostgreSQL | None = None

    def __enter__(self) -> OtherPostgreSQL:
        # Not in the checkout, which root's nobody may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix=f"taskserver-{self._recipe.name}-", dir="/tmp"))
        self.folder.chmod(0o755)
        try:
            self._install()
            self._server = self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    @property
    def programs(self) -> Path:
        """The folder of its programs."""
        return (self.folder / self._recipe.program).parent

    @property
    def version(self) -> str:
        """As the server gives it: 17.12 (Debian 17.12-0+deb13u1)."""
        assert self._server is not None
        return str(self._server.execute("SHOW server_version")[0][0])

    @property
    def environment(self) -> Mapping[str, str]:
        assert self._server is not None
        return {
            "TASKSERVER_TEST_POSTGRESQL": self._server.dsn(self._server.maintenance_database),
            PROGRAMS_VARIABLE: str(self.programs),
        }

    def _install(self) -> None:
        unpack(self._recipe, self._cache, self.folder)
        make_links(self.folder / "package")
        unpacked = Unpacked(self.folder)
        for name in PROGRAMS:
            unpacked.wrap(self.programs / name)

    def _start(self) -> PostgreSQL:
        try:
            return PostgreSQL(programs=self.programs)
        except RuntimeError as error:
            raise NotHad(str(error).splitlines()[-1].strip()) from None

    def _remove(self) -> None:
        if self._server is not None:
            self._server.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_links(package: Path) -> None:
    """Makes the links that an npm package of PostgreSQL lists, as npm packs none: each library is known by one."""
    listed = package / "native/pg-symlinks.json"
    if not listed.exists():
        return
    for link in json.loads(listed.read_text(encoding="utf-8")):
        (package / link["target"]).symlink_to((package / link["source"]).absolute())

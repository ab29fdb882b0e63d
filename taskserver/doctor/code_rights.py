"""Whether others of this host may change what a worker runs: Python, the program, its packages, the listed modules.

Whoever may write a file of code, or its bytecode, or a folder in which Python looks for either, has it run as you; and
so has whoever may rename a folder on the way to it. Modules are found by their paths: nothing is imported. Python is
judged by what this process has of it, which is what a worker of the same environment has.
"""

from __future__ import annotations

import os
import shlex
import site
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ..host.file_rights import account_name, trusted_accounts, way_to, who_else
from ..settings.load import Settings
from .findings import CheckResult, Level, ok, unknown, warning

PACKAGES = ("pymysql", "dotenv")
MAX_SECONDS = 5.0
MAX_NAMED = 3


def of_program(folder: Path) -> CheckResult:
    """The finding on the program and the packages that it uses, which the bundle has inside. Raises OSError."""
    return _search_of_program(folder).finding("code", "the program")


def of_modules(settings: Settings) -> Iterator[CheckResult]:
    """The finding on the listed modules, each with the whole package that it lies in. Raises OSError.

    What the finding on the program names is not named again: there is no finding where that is all.
    """
    search = _search_of_program(settings.folder)
    search.begin_anew()
    names = dict.fromkeys(module.partition(".")[0] for module in settings.modules)
    tops = list(_files_of(names, settings.folder))
    search.look_at(tops)
    finding = search.finding("module_files", "the listed modules")
    if finding.level is not Level.OK or not search.has_named_one_of(tops):
        yield finding


def _search_of_program(folder: Path) -> _Search:
    search = _Search(folder)
    # .env and var/ themselves have checks of their own.
    for path in (folder / ".env", folder / "var"):
        search.look_at_way(path)
    ours = (folder / "taskserver", Path(__file__).parent.parent, folder / "__pycache__", *sorted(folder.glob("*.py")))
    search.look_at([*ours, *_files_of(PACKAGES, folder)])
    search.look_at_places(_places_of_python())
    search.look_at(_files_of_start())
    if sys.pycache_prefix:  # bytecode, then, lies there and not beside its modules
        search.look_at(Path(sys.pycache_prefix).glob("*"))
    return search


def _folders_of_python() -> list[Path]:
    """Each folder or zip in which Python looks for modules, or at its start for `*.pth`; also those not there."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    # Hooks of imports have names there, which are no paths: Python makes each path absolute.
    named = (entry for entry in sys.path if os.path.isabs(entry) or os.path.exists(entry))
    return list(dict.fromkeys(map(Path, (*named, *site.getsitepackages(), *user))))


def _places_of_python() -> Iterator[Path]:
    """Where a file can be laid, or changed, that Python takes code or its own settings from."""
    if sys.executable:
        program = Path(sys.executable)
        yield from (program, program.parent, program.with_name("pyvenv.cfg"), program.parent.parent / "pyvenv.cfg")
    for folder in _folders_of_python():
        yield from (folder, folder / "__pycache__")
    if sys.pycache_prefix:
        yield Path(sys.pycache_prefix)


def _files_of_start() -> Iterator[Path]:
    """What Python has read on its way here: all `*.pth`, and what they or it imported, as sitecustomize."""
    for folder in _folders_of_python():
        with suppress(OSError):
            yield from sorted(folder.glob("*.pth"))
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            files = (vars(module).get("__file__"), vars(module).get("__cached__"))
            yield from (Path(file) for file in files if isinstance(file, str))


def _files_of(modules: Iterable[str], folder: Path) -> Iterator[Path]:
    """Where modules lie that are in no package: a file with its folder of bytecode, or the folders of a package."""
    for name in modules:
        spec = PathFinder.find_spec(name, [str(folder), *sys.path]) or _found_by_hook(name)
        if spec is None:
            continue  # another check tells of a missing one
        if spec.submodule_search_locations is not None:
            yield from map(Path, spec.submodule_search_locations)
        elif spec.origin:
            yield from (Path(spec.origin), Path(spec.origin).with_name("__pycache__"))


def _found_by_hook(name: str) -> ModuleSpec | None:
    """Where a hook of imports finds a module, as of a package that was installed by `pip install -e`."""
    for finder in sys.meta_path:
        with suppress(Exception):  # a hook is anybody's code
            if found := finder.find_spec(name, None):
                return found
    return None


class _Search:
    """A search for what others may change, which ends after MAX_SECONDS: a listed package may be huge."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trusted = trusted_accounts(folder)
        self._judged: dict[tuple[Path, bool], os.stat_result] = {}
        self._walked: set[Path] = set()
        self._noted: set[Path] = set()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Put what was found aside: it is not found again."""
        self._until = time.monotonic() + MAX_SECONDS
        self._ran_out = False
        self._open: dict[Path, str] = {}
        """Who else may change a path, by path, in the order in which they were found."""
        self._mends: dict[str, None] = {}
        """The commands that mend them, each once."""
        self._of_others: list[Path] = []
        """Those of them that this account has no right to mend."""

    def look_at(self, tops: Iterable[Path]) -> None:
        """Judge files and folders with all that is in them, and the ways to them; pass over what is not there."""
        for top in tops:
            if top in self._walked:
                continue
            ahead = deque((end, end) for end in self._at_the_end_of(top))
            while ahead and not self._ran_out:
                self._ran_out = time.monotonic() > self._until
                ahead.extend(self._below(*ahead.popleft()))

    def look_at_places(self, places: Iterable[Path]) -> None:
        """Judge places and the ways to them; of one that is not there, the last folder on its way: it could be made."""
        for place in places:
            self._ran_out = self._ran_out or time.monotonic() > self._until
            if self._ran_out:
                return
            with suppress(OSError):  # links in a circle, or what this account, and so a worker, can't reach
                *way, end = (step for step in way_to(place) if os.path.lexists(step))
                for step in (*way, end):
                    self._judge(step, step != end, f"chmod go-w {shlex.quote(str(step))}")

    def look_at_way(self, path: Path) -> None:
        """Judge the folders and links on the way to a path, and the owner of what stands there."""
        for end in self._at_the_end_of(path):
            found = end.lstat()
            if found.st_uid not in self._trusted:
                self._note(end, who_else(found, self._trusted), found, f"chmod go-w {shlex.quote(str(end))}")

    def _at_the_end_of(self, path: Path) -> Iterator[Path]:
        """What a path leads to, once the way there is judged; nothing where it leads nowhere."""
        if not path.exists():
            return
        *way, end = way_to(path)
        for step in way:
            # Who may add files beside a module may add one that Python finds before it.
            self._judge(step, step != end.parent, f"chmod go-w {shlex.quote(str(step))}")
        yield end

    def _below(self, path: Path, top: Path) -> Iterator[tuple[Path, Path]]:
        """Judge a path, and tell what is to be judged next: what is in a folder, or what a link leads to.

        Each with the top of its tree, which a command mends as a whole; a link leads to another tree.
        """
        if path in self._walked:
            return
        self._walked.add(path)
        mended = self._folder if self._folder in top.parents else top
        try:
            found = self._judge(path, False, f"chmod -R go-w {shlex.quote(str(mended))}")
            if stat.S_ISLNK(found.st_mode):
                yield from ((end, end) for end in self._at_the_end_of(path))
            elif stat.S_ISDIR(found.st_mode):
                yield from ((path / name, top) for name in sorted(os.listdir(path)))
        except (FileNotFoundError, PermissionError):
            pass  # gone meanwhile; or this account can't read it, so that a worker can't run it

    def _judge(self, path: Path, only_passed: bool, mend: str) -> os.stat_result:
        found = self._judged.get((path, only_passed))
        if found is None:
            found = self._judged[path, only_passed] = path.lstat()
            who = who_else(found, self._trusted, only_passed)
            if who:
                self._note(path, who, found, mend)
        return found

    def _note(self, path: Path, who: str, found: os.stat_result, mend: str) -> None:
        if path in self._noted:
            return
        self._noted.add(path)
        self._open[path] = who
        may_mend = os.geteuid() in (0, found.st_uid)
        if may_mend and found.st_uid in self._trusted:
            self._mends[mend] = None
        else:
            self._of_others.append(path)

    def has_named_one_of(self, tops: Iterable[Path]) -> bool:
        """Whether others may change any of these, what is in it, or what is on the way to it."""
        return any(path in way_to(top) or top in path.parents for top in tops for path in self._noted)

    def finding(self, check: str, what: str) -> CheckResult:
        """The finding on all that was looked at."""
        if self._open:
            named = [f"{self._short(path)} ({who})" for path, who in list(self._open.items())[:MAX_NAMED]]
            more = f" and {len(self._open) - MAX_NAMED} more" if len(self._open) > MAX_NAMED else ""
            return warning(
                check,
                f"others of this host may change {', '.join(named)}{more}",
                f"whoever changes {what} has it run as you",
                self._mend(),
            )
        if self._ran_out:
            return unknown(
                check,
                f"{len(self._walked)} files were looked at in {MAX_SECONDS:.0f} s, and there are more",
                f"whoever may change {what} has it run as you",
                "name smaller packages in TASKSERVER_MODULES, with nothing but code in them",
            )
        return ok(check, f"only {' and '.join(map(account_name, sorted(self._trusted)))} may change {what}")

    def _short(self, path: Path) -> str:
        return str(path.relative_to(self._folder)) if self._folder in path.parents else str(path)

    def _mend(self) -> str:
        mends = list(self._mends)
        if len(mends) > MAX_NAMED:
            mends = [*mends[:MAX_NAMED], "and look again"]
        if self._of_others:
            mends.append(
                f"have your host mend {self._of_others[0]}, which is not yours, or put the folder where all is yours"
            )
        return "; ".join(mends)

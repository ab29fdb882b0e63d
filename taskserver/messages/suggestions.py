"""The name that a mistyped one may have meant. For messages alone: nothing is looked up by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

MAX_COMPARED = 300
"""Names that one mistyped name is compared with; a file may hold any number of names."""
MAX_NAME_LENGTH = 100
"""Characters of a name that are compared."""
MAX_NAMES_SHOWN = 5

_OTHER_DOTS = re.compile(r"->|::|[\\/]")


def nearest(name: str, names: Iterable[str], likeness: float = 0.7) -> str | None:
    """The most similar of these names, at least by `likeness` (0 to 1), whatever the case; None without one."""
    return next(iter(alike(name, names, likeness, most=1)), None)


def alike(name: str, names: Iterable[str], likeness: float = 0.7, most: int = 2) -> list[str]:
    """The most similar of these names, `most` at most, the likest first."""
    from difflib import get_close_matches  # imported with the first mistake

    folded = name[:MAX_NAME_LENGTH].casefold()
    by_folded = {one[:MAX_NAME_LENGTH].casefold(): one for one in islice(names, MAX_COMPARED)}
    found = [folded] if folded in by_folded else get_close_matches(folded, by_folded, n=most, cutoff=likeness)
    return [by_folded[one] for one in found]


def instead(part: str, names: Sequence[str]) -> str:
    """The end of the message that a name is not there: the name that may be meant, or the first names there are."""
    meant = nearest(part, names, likeness=0.6)
    if meant:
        return f"; did you mean {meant!r}?"
    more = ", …" if len(names) > MAX_NAMES_SHOWN else ""
    return f"; there is {', '.join(names[:MAX_NAMES_SHOWN])}{more}" if names else "; there is nothing that may run"


def tidied(name: str) -> str:
    """A name without the signs that people write around it: `tasks/send_letter()` is tasks.send_letter."""
    plain = name.strip().strip("\ufeff\u200b.;\"'").partition("(")[0].strip()
    # No blanks in the pattern: of a long run of them it would try each end for each begin.
    return ".".join(map(str.strip, _OTHER_DOTS.split(plain))).replace(".py.", ".").replace(".py:", ":")

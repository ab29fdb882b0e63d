"""What a mistyped name may have meant. For messages alone: nothing is ever looked up by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

MOST_COMPARED = 300
"""Names; a file may hold any number of them, and a row may ask for each of its own."""
LONGEST = 100
"""Characters of a name that are looked at."""
MOST_NAMES_SHOWN = 5

_OTHER_DOTS = re.compile(r"\s*(?:->|::|[\\/])\s*")


def nearest(name: str, names: Iterable[str], likeness: float = 0.7) -> str | None:
    """The one of these names that is most alike, from 0 to 1; capitals are as good as small letters."""
    # Imported here, with the first mistake.
    from difflib import get_close_matches

    by_folded = {one[:LONGEST].casefold(): one for one in islice(names, MOST_COMPARED)}
    alike = get_close_matches(name[:LONGEST].casefold(), by_folded, n=1, cutoff=likeness)
    return by_folded[alike[0]] if alike else None


def instead(part: str, names: Sequence[str]) -> str:
    """What there is in the place of a name that is not there."""
    meant = nearest(part, names, likeness=0.6)
    if meant:
        return f"; did you mean {meant!r}?"
    more = ", …" if len(names) > MOST_NAMES_SHOWN else ""
    return f"; there is {', '.join(names[:MOST_NAMES_SHOWN])}{more}" if names else "; there is nothing that may run"


def tidied(name: str) -> str:
    """A name without what people write around it: `tasks/send_letter()` is tasks.send_letter."""
    plain = name.strip().strip("\ufeff\u200b.;\"'").partition("(")[0].strip()
    return _OTHER_DOTS.sub(".", plain).replace(".py.", ".").replace(".py:", ":")

"""What a mistyped name may have meant. For messages alone: nothing is ever looked up by it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

MOST_COMPARED = 300
"""Names; a file may hold any number of them, and a row may ask for each of its own."""
LONGEST = 100
"""Characters of a name that are looked at."""


def nearest(name: str, names: Iterable[str], likeness: float = 0.7) -> str | None:
    """The one of these names that is most alike, from 0 to 1; capitals are as good as small letters."""
    # Imported here, with the first mistake.
    from difflib import get_close_matches

    by_folded = {one[:LONGEST].casefold(): one for one in islice(names, MOST_COMPARED)}
    alike = get_close_matches(name[:LONGEST].casefold(), by_folded, n=1, cutoff=likeness)
    return by_folded[alike[0]] if alike else None

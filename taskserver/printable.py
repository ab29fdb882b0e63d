"""What is shown to a person: what rows and tasks say, made harmless for a terminal, a mail or a log; and ages."""

LONGEST_SHOWN = 80


def printable(text: str) -> str:
    r"""The text in one line, with `\n`, `\x1b` and the like in place of what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def age(seconds: float | None) -> str:
    """Seconds in the unit that a person would use."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def shown(value: object) -> str:
    """A value that was given, for a message."""
    try:
        text = repr(value)
    except Exception:  # an integer too long to be written, or an object that has no text
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"

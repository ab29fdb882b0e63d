"""What is shown to a person: what rows and tasks say, made harmless for a terminal, a mail or a log; and ages."""


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

"""What rows and tasks say, made harmless for a terminal, a mail or a log: control characters shown, not sent."""


def printable(text: str) -> str:
    r"""The text in one line, with `\n`, `\x1b` and the like in place of what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )

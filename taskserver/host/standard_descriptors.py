"""The descriptors of the standard streams, 0 to 2, which a caller or a task may have closed."""

from __future__ import annotations

import os


def fill_standard_descriptors() -> None:
    """Open those that are closed, on nothing.

    Otherwise the next file or connection gets such a number, and what anybody prints goes into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)

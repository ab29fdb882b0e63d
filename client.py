#!/usr/bin/env python3
"""Adds tasks and shows the queue: client.py COMMAND [options]."""

# Written so that any old Python can read it, and be told which one is needed.
import os
import sys

if os.environ.get("GATEWAY_INTERFACE"):
    sys.stderr.write("client.py: this is for the shell, not for a web server; keep it outside the web folder\n")
    sys.exit(2)
if sys.version_info < (3, 10):
    sys.stderr.write(
        "client.py: needs Python 3.10 or newer, and this is %d.%d: begin the line with the path of a newer one, "
        "such as /usr/bin/python3.11, as your host's panel names it\n" % sys.version_info[:2]
    )
    sys.exit(2)

import signal

# Held back until it is understood: in the midst of an import it would end in a traceback. Not in a process
# that multiprocessing starts anew, which imports this file.
if __name__ == "__main__" and hasattr(signal, "pthread_sigmask"):  # Windows has none
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

from pathlib import Path

FOLDER = Path(os.path.realpath(__file__)).parent
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))

try:
    from taskserver.cli.client import main
except (ImportError, SyntaxError, NameError, AttributeError) as error:  # an upload that was cut off
    what = getattr(error, "filename", None) or error
    sys.stderr.write("client.py: the program is not whole (%s): upload the folder again\n" % what)
    sys.exit(2)
except EOFError:
    sys.stderr.write("client.py: a full disk cut off what Python compiled: delete all folders __pycache__\n")
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main(FOLDER, sys.argv[1:]))

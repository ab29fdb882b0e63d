"""python -m taskserver COMMAND …, as client.py; python -m taskserver worker …, as worker.py."""

import sys

from .cli.installed import client, worker

if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        del sys.argv[1]
        sys.exit(worker())
    sys.exit(client())

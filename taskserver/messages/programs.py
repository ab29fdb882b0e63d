"""The names of our two programs: files beside the package, or commands where pip has installed it."""

import os

_BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
IS_INSTALLED = not any(os.path.exists(os.path.join(_BESIDE, name)) for name in ("worker.py", "client.py"))
CLIENT, WORKER = ("taskserver", "taskserver-worker") if IS_INSTALLED else ("client.py", "worker.py")
BESIDE = "in the deployment's folder" if IS_INSTALLED else "beside worker.py"
"""The place of a site's own modules."""

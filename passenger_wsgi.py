"""The status page, for cPanel's "Setup Python App" and other hosts that load passenger_wsgi.py; see docs/page.md."""

# Written so that any old Python can read it, and tell which one is needed.
import os
import sys

FOLDER = os.path.dirname(os.path.realpath(__file__))
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)

if sys.version_info < (3, 10):

    def application(environ, start_response):
        """Tell which Python is needed."""
        text = "The page needs Python 3.10 or newer, and this is %d.%d: choose a newer one in the host's panel.\n"
        body = (text % sys.version_info[:2]).encode("ascii")
        start_response("503 Service Unavailable", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

else:
    from taskserver.web import application_of

    os.umask(os.umask(0o022) | 0o022)  # nobody else may write to what it makes
    application = application_of(FOLDER)

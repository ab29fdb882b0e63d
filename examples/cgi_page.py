#!/usr/bin/python3
"""wsgi_page.py as a CGI script, for hosts that have only CGI: both files lie in one folder.

For cgi-bin, mode 0755; its first line names a Python from 3.10 on. Each request starts Python and connects: a page that
is kept running, or PHP, answers sooner.
"""

# mypy: disable-error-code="import-not-found"

from wsgiref.handlers import CGIHandler

from wsgi_page import application

CGIHandler().run(application)

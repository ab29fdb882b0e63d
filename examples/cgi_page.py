#!/usr/bin/python3
"""wsgi_page.py, which lies beside it, as a CGI script, for hosts that have CGI alone.

For cgi-bin, mode 0755; its first line must name a Python from 3.10 on. It connects anew with each request, and starts
Python anew: a page that is kept running, or PHP, answers sooner.
"""

# mypy: disable-error-code="import-not-found"

from wsgiref.handlers import CGIHandler

from wsgi_page import application

CGIHandler().run(application)

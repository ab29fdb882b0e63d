#!/usr/bin/python3
"""The status page as a CGI script, for hosts that start a program for each visit; see docs/page.md.

Copy it into cgi-bin, make its mode 0755, and let the first line name a Python from 3.10 on.
"""

import os
import sys
from wsgiref.handlers import CGIHandler

FOLDER = "/home/you/taskserver"
sys.path.insert(0, FOLDER)

if sys.version_info < (3, 10):
    text = "The page needs Python 3.10 or newer, and this is %d.%d: let the first line of page.cgi name another.\n"
    sys.stdout.write("Status: 503 Service Unavailable\nContent-Type: text/plain\n\n" + text % sys.version_info[:2])
    sys.exit()

from taskserver.web import application_of

os.umask(os.umask(0o022) | 0o022)  # nobody else may write to what it makes
CGIHandler().run(application_of(FOLDER))

#!/usr/bin/python3
"""The status page as a CGI script, for hosts that start a program for each visit; see docs/page.md.

Copy it into cgi-bin, make its mode 0755, and let the first line name a Python from 3.10 on.
"""

import sys
from wsgiref.handlers import CGIHandler

FOLDER = "/home/you/taskserver"
sys.path.insert(0, FOLDER)

from taskserver.web import application_of

CGIHandler().run(application_of(FOLDER))

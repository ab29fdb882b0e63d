"""The site for a web server, under the name that cPanel's Python apps look for."""

from shop import create_app

application = create_app()

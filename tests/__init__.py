"""The tests. Servers are in servers.py, a user's folder in deployment.py, fixtures in conftest.py."""

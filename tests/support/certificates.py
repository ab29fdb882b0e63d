"""Certificates for servers of tests, made by openssl."""

from __future__ import annotations

import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import NOBODY


class Certificates(NamedTuple):
    """A certificate for 127.0.0.1 and localhost, signed by `authority`; `stranger` signed nothing of it."""

    authority: Path
    stranger: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For a server of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


@contextmanager
def made_certificates() -> Iterator[Certificates]:
    """In the `with`, fresh certificates."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    with tempfile.TemporaryDirectory(prefix="taskserver-tls-", dir="/tmp") as name:
        folder = Path(name)

        def openssl(arguments: str, *more: str) -> None:
            command = ["openssl", *arguments.split(), *more]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

        for who in ("authority", "stranger"):
            openssl(f"req -x509 -days 2 -subj /CN={who} -keyout {who}.key -out {who}.pem", *key)
        openssl("req -subj /CN=server -keyout server.key -out server.csr", *key)
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signed = "-CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -extfile names"
        openssl(f"x509 -req -in server.csr -out server.pem {signed}")
        if os.getuid() == 0:
            folder.chmod(0o755)
            os.chown(folder / "server.key", NOBODY, NOBODY)
        files = [folder / name for name in ("authority.pem", "stranger.pem", "server.pem", "server.key")]
        yield Certificates(*files)

"""Certificates for servers of tests, made by openssl."""

from __future__ import annotations

import os
import shutil
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
    folder = Path(tempfile.mkdtemp(prefix="taskserver-tls-", dir="/tmp"))
    try:
        for name in ("authority", "stranger"):
            make_authority(folder, name)
        yield Certificates(folder / "authority.pem", folder / "stranger.pem", *sign(folder, "server"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(folder: Path, name: str) -> None:
    openssl(folder, "req", "-x509", *EC_KEY, "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip


def sign(folder: Path, name: str) -> tuple[Path, Path]:
    openssl(folder, "req", *EC_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    if os.getuid() == 0:
        folder.chmod(0o755)
        os.chown(key, NOBODY, NOBODY)
    return certificate, key

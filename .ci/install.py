"""Installs a list of requirements with their hashes into the Python that runs this: `install.py FILE`.

Of the machine's own pip settings those hold that say where packages come from and how they get here. Others could add
packages, or put them elsewhere.
"""

import os
import subprocess
import sys
from ast import literal_eval

PIP = [sys.executable, "-m", "pip"]
KEPT = [
    *("index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "keyring-provider"),
    *("cert", "client-cert", "proxy", "timeout", "default-timeout", "retries", "cache-dir", "no-cache-dir"),
]


def is_pips(variable: str) -> bool:
    """Whether an environment variable is a setting of pip's."""
    return variable.startswith("PIP_")


def is_kept(variable: str) -> bool:
    """Whether such a variable has one of the kept keys: PIP_INDEX_URL has index-url."""
    return is_pips(variable) and variable.removeprefix("PIP_").lower().replace("_", "-") in KEPT


def settings() -> dict[str, str]:
    """The kept settings as environment variables: the environment's own, else those of [install], else of [global]."""
    listed = subprocess.run([*PIP, "config", "list"], check=False, capture_output=True, text=True).stdout
    found = {}
    for section in ("global", "install"):
        for line in listed.splitlines():
            name, _, value = line.partition("=")
            variable = "PIP_" + name.removeprefix(f"{section}.").upper().replace("-", "_")
            if name.startswith(f"{section}.") and is_kept(variable):
                found[variable] = " ".join(literal_eval(value).split())
    return found | {name: value for name, value in os.environ.items() if is_kept(name)}


def environment(sources: dict[str, str]) -> dict[str, str]:
    """The environment of this process, with no other settings of pip's than these."""
    environ = {name: value for name, value in os.environ.items() if not is_pips(name)}
    ours = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return environ | ours | sources


def main(file: str) -> int:
    """Install them, and look whether they are there; pip's exit code."""
    # Nothing that would have to be built, by what has no hash.
    install = [*PIP, "install", "-q", "--require-hashes", "--only-binary", ":all:", "-r", file]
    code = subprocess.run(install, check=False, env=environment(settings())).returncode
    # Without any source pip fails unless all of it is there.
    return code or subprocess.run([*install, "--no-index"], check=False, env=environment({})).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

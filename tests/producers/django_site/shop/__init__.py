"""A Django site whose tasks run here."""

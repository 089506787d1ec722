"""What all tables have in common."""

from __future__ import annotations

from sqlalchemy import MetaData

metadata = MetaData(
    # Constraints need names, or later migrations could not change them.
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""Tables of every part. Times are integers, microseconds since 1970 in UTC; money is integers, too."""


def import_tables() -> None:
    """Have every part's tables declared in `metadata`."""
    import tokentrail.gateway.keys.tables
    import tokentrail.gateway.ledger.tables  # noqa: F401

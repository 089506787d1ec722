"""Where keys, quotas and usage are kept."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_KNOWN = re.compile(r"sqlite:///.|postgres(ql)?(\+psycopg)?://")


def _known(url: str) -> str:
    # The value is not quoted: it may hold a password.
    if not _KNOWN.match(url):
        raise ValueError("must begin with sqlite:/// (and a file's path) or postgresql://")
    return url


DatabaseUrl = Annotated[
    str,
    AfterValidator(_known),
    Field(
        description="sqlite:///FILE, relative to this file, or postgresql://USER:PASSWORD@HOST/NAME. Several gateways "
        "share one in PostgreSQL. Without it, tokentrail.db beside this file, where a part needs a database."
    ),
]
DEFAULT_DATABASE = "sqlite:///tokentrail.db"

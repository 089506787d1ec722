"""What all parts of a deployment file have in common. Unknown names are mistakes: a setting that is not read protects
nobody.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w .:/-]+$")]


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

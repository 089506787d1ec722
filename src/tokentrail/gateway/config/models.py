"""Models: engines of this machine and models of remote upstreams."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from tokentrail.answer.remote import KINDS, RemoteTarget, RemoteTimeouts
from tokentrail.engine.cores import parse_cores
from tokentrail.gateway.config.base import Settings

ModelName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\w.:/@+-]+$")]
"""What clients write in `model`: no spaces."""

_FIRST_TOKEN = "Seconds from the request being sent to the first piece of the answer."


class TimeoutSettings(Settings):
    """How patient to be with an upstream."""

    connect_s: float = Field(default=5.0, gt=0, le=3600, description="Seconds until there is a connection.")
    first_token_s: float = Field(default=120.0, gt=0, le=86400, description=_FIRST_TOKEN)
    between_tokens_s: float = Field(
        default=60.0, gt=0, le=86400, description="Seconds from one piece of the answer to the next."
    )


class AnyModel(Settings):
    """What all models have."""

    name: ModelName = Field(description="What routes and clients call it.")
    hidden: bool = Field(default=False, description="Only routes may ask it; clients see no such model.")
    max_concurrent: int | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="Requests at once at most; more go elsewhere, or are refused.",
    )


class LocalModel(AnyModel):
    """A model that runs on this machine."""

    model: str = Field(
        min_length=1,
        max_length=4096,
        description="demo, a GGUF file, a model's folder, or a name on a hub, as `tokentrail serve` takes it. A path "
        "is looked for beside this file first.",
    )
    replicas: int = Field(
        default=1, ge=1, le=256, description="Engine processes, among which the cores are divided."
    )
    cores: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="CPUs that each replica is pinned to, such as 0-3,8: one entry a replica. Without it, all that "
        "there are, divided; a single replica is not pinned.",
    )
    flags: dict[str, bool | int | float | str | list[str] | None] = Field(
        default={},
        description="Flags of `tokentrail serve` for the engine and its texts, without their dashes.",
    )

    @field_validator("cores", mode="before")
    @classmethod
    def _numbers_too(cls, value: Any) -> Any:
        """A single core is a number in YAML."""
        return [str(one) if type(one) is int else one for one in value] if isinstance(value, list) else value

    @model_validator(mode="after")
    def _cores_fit(self) -> LocalModel:
        if self.cores is not None:
            if len(self.cores) != self.replicas:
                raise ValueError(
                    f"cores must have one entry for each of the {self.replicas} replicas, not {len(self.cores)}"
                )
            for text in self.cores:
                parse_cores(text)
        return self

    def runs_like(self, other: LocalModel) -> bool:
        """Engines that were started for the one do for the other."""
        return all(
            getattr(self, name) == getattr(other, name) for name in ("model", "replicas", "cores", "flags")
        )

    @property
    def core_sets(self) -> list[tuple[int, ...]] | None:
        return None if self.cores is None else [parse_cores(text) for text in self.cores]


class RemoteModel(AnyModel):
    """A model of an OpenAI-compatible upstream."""

    url: str = Field(
        max_length=2048,
        pattern=r"^https?://[^\s/]+(/\S*)?$",
        description="Where it is, with or without the /v1.",
    )
    model: str = Field(
        default="", max_length=512, description="The upstream's name for it; without it, `name`."
    )
    api_key: str = Field(default="", max_length=8192, repr=False, description="Such as ${UPSTREAM_KEY}.")
    kind: Literal[KINDS] | None = Field(  # type: ignore[valid-type]
        None, description="What the upstream is; without it, it is asked."
    )
    context_length: int | None = Field(default=None, gt=0, description="Without it, the upstream is asked.")
    timeouts: TimeoutSettings = TimeoutSettings()
    headers: dict[str, str] = Field(default={}, repr=False, description="Sent with each request.")
    verify_tls: bool = True
    ca_file: str | None = Field(default=None, description="Certificates of authorities to trust, in PEM.")
    max_connections: int = Field(default=512, gt=0, le=100_000)

    def target(self) -> RemoteTarget:
        fields = ("name", "url", "model", "api_key", "kind", "context_length", "headers", "verify_tls")
        return RemoteTarget(
            **{field: getattr(self, field) for field in fields},
            ca_file=self.ca_file,
            max_connections=self.max_connections,
            timeouts=RemoteTimeouts(**self.timeouts.model_dump()),
        )


LOCAL, REMOTE = "local", "remote"


def _kind(value: Any) -> str:
    if isinstance(value, RemoteModel) or (isinstance(value, dict) and "url" in value):
        return REMOTE
    return LOCAL


ModelSettings = Annotated[
    Annotated[LocalModel, Tag(LOCAL)] | Annotated[RemoteModel, Tag(REMOTE)], Discriminator(_kind)
]
"""One with a `url` is remote."""

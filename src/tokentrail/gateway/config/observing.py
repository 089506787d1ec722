"""What is told about requests, and to whom."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from tokentrail.gateway.config.base import Settings


class MetricsSettings(Settings):
    """Labels of metrics by route, target and tenant. What finds no room is counted as `other`."""

    tenants: int = Field(default=50, ge=0, le=10_000, description="Tenants that have a label of their own.")
    targets: int = Field(default=100, ge=1, le=10_000, description="Routes, and targets, that have one.")
    series: int = Field(default=1000, ge=1, le=100_000, description="Combinations of the three.")


class TracingSettings(Settings):
    """Traces, sent to whatever speaks OTLP. What is not given is as OpenTelemetry's environment variables say."""

    endpoint: str | None = Field(
        None,
        description="Where the receiver is, such as http://collector:4318; /v1/traces is added where it is missing.",
    )
    protocol: Literal["http/protobuf"] = "http/protobuf"
    headers: dict[str, str] = Field(
        {}, description="Sent along, such as keys: ${VAR} keeps them out of the file."
    )
    sample_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Part of the requests that are traced; those of callers that trace are traced as these say. "
        "Without it, as OTEL_TRACES_SAMPLER and …_ARG say, otherwise all.",
    )
    timeout_s: float = Field(10, gt=0, le=300, description="For sending a batch.")

    @field_validator("endpoint")
    @classmethod
    def _checked(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("must be a URL such as http://collector:4318")
        return url

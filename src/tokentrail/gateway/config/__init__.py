"""The deployment file: what `tokentrail serve --config deploy.yaml` turns on, checked whole before anything starts."""

from tokentrail.gateway.config.reading import ConfigError, load, parse, schema
from tokentrail.gateway.config.settings import CacheSettings, Deployment, FilterSettings

__all__ = ["CacheSettings", "ConfigError", "Deployment", "FilterSettings", "load", "parse", "schema"]

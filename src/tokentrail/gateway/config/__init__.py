"""The deployment file: what `tokentrail serve --config deploy.yaml` turns on, checked whole before anything starts."""

from tokentrail.gateway.config.cache import CacheSettings
from tokentrail.gateway.config.filters import FilterSettings
from tokentrail.gateway.config.keys import KeysSettings, ListedKey, TenantSettings
from tokentrail.gateway.config.ledger import LedgerSettings
from tokentrail.gateway.config.limits import LimitSettings, LimitsSettings
from tokentrail.gateway.config.models import LocalModel, RemoteModel
from tokentrail.gateway.config.prices import PriceSettings, PricesSettings
from tokentrail.gateway.config.reading import ConfigError, load, parse, schema
from tokentrail.gateway.config.routes import (
    ClassifierSettings,
    HealthSettings,
    RouteSettings,
    RuleSettings,
    ScenarioSettings,
    WeightedTarget,
)
from tokentrail.gateway.config.settings import Deployment

__all__ = [
    "CacheSettings",
    "ClassifierSettings",
    "ConfigError",
    "Deployment",
    "FilterSettings",
    "HealthSettings",
    "KeysSettings",
    "LedgerSettings",
    "LimitSettings",
    "LimitsSettings",
    "ListedKey",
    "LocalModel",
    "PriceSettings",
    "PricesSettings",
    "RemoteModel",
    "RouteSettings",
    "RuleSettings",
    "ScenarioSettings",
    "TenantSettings",
    "WeightedTarget",
    "load",
    "parse",
    "schema",
]

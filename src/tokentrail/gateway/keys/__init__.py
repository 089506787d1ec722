"""Who may ask: keys, the tenants that they belong to, and what each key may do."""

from tokentrail.gateway.keys.records import KeyRecord, TenantRecord
from tokentrail.gateway.keys.scopes import ENDPOINTS

__all__ = ["ENDPOINTS", "KeyRecord", "TenantRecord"]

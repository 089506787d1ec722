"""Who may ask: keys, the tenants that they belong to, and what each key may do.

`ring` holds in memory what requests are checked against, `store` keeps keys in the database.
"""

from tokentrail.gateway.keys.records import KeyRecord, TenantRecord
from tokentrail.gateway.keys.ring import KeyRing

__all__ = ["KeyRecord", "KeyRing", "TenantRecord"]

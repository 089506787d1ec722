"""Who may ask, how much, about what, and who answers: what production puts between clients and models.

Without a deployment file (`config`) none of it runs. `gateway.Gateway` puts the parts that the file names before
the backends that answer.
"""

from tokentrail.gateway.config import ConfigError
from tokentrail.gateway.gateway import Gateway

__all__ = ["ConfigError", "Gateway"]

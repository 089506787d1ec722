"""Who may ask, how much, about what, and who answers: what production puts between clients and models.

Without a deployment file (`config`) none of it runs. So far: `filters`, which keep forbidden text out of prompts and
answers.
"""

from tokentrail.gateway.config import ConfigError
from tokentrail.gateway.gateway import Gateway

__all__ = ["ConfigError", "Gateway"]

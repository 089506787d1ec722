"""`tokentrail inspect`: what a model holds, what it takes and how fast it could be on this machine, how it splits a
text, what its chat template writes.
"""

from tokentrail.cli.inspect.command import register

__all__ = ["register"]

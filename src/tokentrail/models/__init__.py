"""Architectures as plain Python over ops: a file a family that a reader can check against its paper.

`load_model(checkpoint, backend)` packs the weights and records the family's forward pass into a `Program`.
`loader.py` alone knows both how checkpoints store weights and which layouts the ops want.
"""

from tokentrail.models.loader import LoadedModel, activation_formats, describe_model, load_model

__all__ = ["LoadedModel", "activation_formats", "describe_model", "load_model"]

"""The op set and its implementations: `native` (C++) and `reference` (NumPy, the oracle).

The seam for hardware: nothing above this room knows which implementation runs.
"""

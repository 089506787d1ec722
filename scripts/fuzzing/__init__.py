"""What `scripts/fuzz.py` is made of: small valid models of every format, ways to damage them, and a case's run."""

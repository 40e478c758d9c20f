"""Masking: the choice of tokens, and their replacement."""

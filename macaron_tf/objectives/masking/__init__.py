"""Masking: which tokens of a row are predicted, and what replaces them in the input."""

"""Sentence pairs, tokenized and batched."""

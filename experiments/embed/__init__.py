"""Sentence encoders."""

"""Paths, locks, and files that are never half-written."""

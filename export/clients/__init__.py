"""Clients of a served translation model, one a protocol."""

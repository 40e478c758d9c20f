"""Tiny models, corpora, tasks and runs that several tests share."""

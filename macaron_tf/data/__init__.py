"""Data pipelines from text to batches of token ids.

`sources` reads translation pairs, documents and tables. `corpus` packs documents into rows on disk
for pre-training. `translation` tokenizes sentence pairs and batches them. `tasks` reads and
tokenizes labelled examples.
"""

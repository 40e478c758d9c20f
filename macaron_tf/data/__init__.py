"""From text to batches of token ids.

`sources` reads translation pairs, documents and tables; `corpus` packs documents into rows on disk
for pre-training; `translation` and `tasks` encode examples; `service` makes batches elsewhere.
"""

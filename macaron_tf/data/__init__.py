"""Data pipelines from text to batches of token ids.

`sources` reads translation pairs, documents and tables. `corpus` packs documents into rows on disk
for pre-training. `translation` and `tasks` encode examples. `service` reads batches from a tf.data
service.
"""

"""Pre-training corpora: packs documents into rows on disk, and reads batches of the rows."""

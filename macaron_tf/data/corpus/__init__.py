"""Pre-training corpora: packing of documents into rows on disk, and batches of the rows."""

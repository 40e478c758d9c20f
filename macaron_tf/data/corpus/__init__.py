"""Pre-training corpora: documents packed into rows, written, read, served."""

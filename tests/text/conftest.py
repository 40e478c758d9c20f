"""Small parallel corpora and joint vocabularies."""

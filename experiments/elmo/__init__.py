"""ELMo and its word vectors."""

"""`macaron elmo`: trains ELMo and applies its word vectors."""

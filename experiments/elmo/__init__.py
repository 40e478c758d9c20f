"""`python -m experiments.elmo`: trains ELMo and applies its word vectors."""

"""Text to token ids and back: normalization, vocabularies, offsets."""

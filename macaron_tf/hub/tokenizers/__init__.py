"""Tokenizers in Hugging Face folders and KerasHub presets: readers and writers."""

"""Pre-training of encoders, language models and encoder-decoders."""

"""`macaron pretrain`: pre-trains encoders, language models and encoder-decoders."""

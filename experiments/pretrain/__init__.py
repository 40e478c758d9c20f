"""`python -m experiments.pretrain`: pre-trains encoders, language models and encoder-decoders."""

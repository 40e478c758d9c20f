"""`python -m experiments.lab.slides`: compares small encoders, language models, T5 and BART."""

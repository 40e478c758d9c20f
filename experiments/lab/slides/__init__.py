"""`python -m experiments.lab.slides`: compares small encoders, language models and T5 or BART."""

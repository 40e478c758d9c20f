"""Commands of `python -m experiments.text_to_text`."""

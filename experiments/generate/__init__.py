"""Generation and scoring of text by pre-trained models: `python -m experiments.generate`."""

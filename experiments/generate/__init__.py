"""`python -m experiments.generate`: generates and scores text with a pre-trained model."""

"""`python -m experiments.translate`: trains, evaluates and applies translation models."""

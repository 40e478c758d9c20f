"""`python -m experiments.embed`: trains, evaluates and applies sentence encoders."""

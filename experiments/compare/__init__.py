"""`python -m experiments.compare`: arms trained seed by seed on equal data, and a verdict."""

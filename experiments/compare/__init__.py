"""`python -m experiments.compare`: trains variants on equal data and tests their differences."""

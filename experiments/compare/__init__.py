"""`python -m experiments.compare`: trains variants on equal data and judges their differences."""

"""`macaron compare`: trains variants on equal data and tests their differences."""

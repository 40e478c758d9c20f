"""`macaron translate`: trains, evaluates and applies translation models."""

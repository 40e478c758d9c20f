"""`macaron embed`: trains, evaluates and applies sentence encoders."""

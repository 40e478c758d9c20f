"""`macaron demo`: trains, evaluates and serves a small translation model."""

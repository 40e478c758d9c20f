"""Which tokens are masked, and what takes their place."""

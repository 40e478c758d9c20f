"""Renting the machines: the guide's table of costs."""

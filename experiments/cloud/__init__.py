"""A guide to rented machines, with a table of costs."""

"""Guide to training on rented machines, with a table of costs."""

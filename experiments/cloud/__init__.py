"""Scripts and a guide for training on rented machines, with a table of costs."""

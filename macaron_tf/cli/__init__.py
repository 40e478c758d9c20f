"""Commands: their names, their process, their arguments."""

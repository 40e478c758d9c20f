"""Command lines: the launcher, the process of a command, and its arguments."""

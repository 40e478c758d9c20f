"""Runs a task's graph in this process, or writes it for another runtime and opens it again."""

"""Engines: a task's graph run in this process, or written for another runtime."""

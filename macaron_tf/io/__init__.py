"""File access (paths, locks, atomic writing, downloads) and progress display."""

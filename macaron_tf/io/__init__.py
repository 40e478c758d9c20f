"""Files and folders: paths, locks, atomic writing, downloads, and progress."""

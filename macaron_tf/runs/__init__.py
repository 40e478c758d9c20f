"""Training runs: recipes, folders, and how each kind of run reads data, starts and is trained."""

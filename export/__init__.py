"""Taking a model into use: SavedModel export, a server, and its clients."""

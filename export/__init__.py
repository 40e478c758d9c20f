"""Commands that export a trained model and serve an exported model."""

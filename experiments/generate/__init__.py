"""`macaron generate`: generates and scores text with a pre-trained model."""

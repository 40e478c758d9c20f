"""`macaron text_to_text`: fine-tunes T5 and BART on text-to-text tasks."""

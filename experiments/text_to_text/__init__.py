"""Fine-tuning of T5 and BART on text-to-text tasks."""

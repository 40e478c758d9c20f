"""Tasks for fine-tuning and prompting: definitions, readers of examples, and tokenization."""

"""Tasks for fine-tuning and prompting: definitions, examples, and their encoding as rows of ids."""

"""The tasks of fine-tuning and prompting, and their examples as rows."""

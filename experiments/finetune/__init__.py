"""`macaron finetune`: fine-tunes and evaluates pre-trained models."""

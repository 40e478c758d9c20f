"""`python -m experiments.finetune`: fine-tunes and evaluates pre-trained models."""

"""Fine-tuning of pre-trained models on labelled examples."""

"""Evaluation metrics: classification, tagging, question answering, translation and more."""

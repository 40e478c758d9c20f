"""Sentence-BERT: encoders of sentences, trained, judged, and searched with."""

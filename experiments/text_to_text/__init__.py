"""The parts of `experiments.text_to_text`."""

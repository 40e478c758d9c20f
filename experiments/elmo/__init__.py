"""ELMo: what `experiments.elmo` is made of."""

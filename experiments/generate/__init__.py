"""The parts of `experiments.generate`."""

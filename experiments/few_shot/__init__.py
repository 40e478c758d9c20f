"""The parts of `experiments.few_shot`."""

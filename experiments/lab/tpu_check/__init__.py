"""The parts of `tpu_check`: a recipe's train step, its compilation for a TPU, and the findings."""

"""Behind `tpu_check`: a recipe's train step, its TPU compilation, and what the compiler says."""

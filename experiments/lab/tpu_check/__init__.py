"""Implementation of `tpu_check`: tracing of train steps, compilation for a TPU, and reports."""

"""Benchmarks, the TPU check and studies; neither the library nor the commands need them."""

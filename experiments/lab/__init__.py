"""Benchmarks, the TPU check and studies, which no other package imports."""

"""Benchmarks that compare this library with other libraries on one machine."""

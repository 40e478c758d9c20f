"""Masking: chooses the tokens of a row to predict, and replaces those tokens in the input."""

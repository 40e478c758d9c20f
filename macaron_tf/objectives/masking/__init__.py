"""Token masking: choice of the tokens to predict, and replacement of these tokens in the input."""

"""Sources of text: TensorFlow Datasets, files, the user's functions, and the default corpus."""

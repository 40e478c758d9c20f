"""A local model server with TensorFlow Serving's REST and gRPC contract."""

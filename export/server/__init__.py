"""Local model server with TensorFlow Serving's REST and gRPC APIs."""

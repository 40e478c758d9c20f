"""Local model server with TensorFlow Serving's REST API, on Starlette and uvicorn."""

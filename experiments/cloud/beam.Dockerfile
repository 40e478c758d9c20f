# Image for the Dataflow workers of `pretrain prepare --beam`. Run in the root of a checkout:
#   docker build --file experiments/cloud/beam.Dockerfile --tag macaron-beam .
FROM apache/beam_python3.11_sdk:2.77.0

COPY . /macaron_tf
RUN pip install --no-cache-dir --requirement /macaron_tf/requirements.txt \
    && pip install --no-cache-dir --no-deps --no-build-isolation /macaron_tf

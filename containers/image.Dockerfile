# The image service. From the root of the repository:
#   docker build --file containers/image.Dockerfile --tag allm-image .
# With CUDA: --build-arg VARIANT=cuda. On x86-64 the usual index has torch with CUDA's libraries, some gigabytes; for a small
# image without GPU add PyTorch's index of CPU wheels: --build-arg PIP_EXTRA_INDEX_URL=...
ARG VARIANT=cpu
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/allm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --constraint constraints.txt ".[image,redis,traces]"

FROM ${PYTHON_IMAGE} AS run-cpu

FROM ${PYTHON_IMAGE} AS run-cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM run-${VARIANT}
RUN groupadd --gid 10001 allm \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/allm --no-create-home --shell /usr/sbin/nologin allm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/allm /models /pictures
COPY --from=build /opt/allm /opt/allm
ENV PATH=/opt/allm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/allm \
    ALLM_HOME=/var/lib/allm \
    ALLM_MODELS_DIR=/models \
    ALLM_IMAGE_FOLDER=/pictures \
    ALLM_LISTEN=0.0.0.0:50051 \
    ALLM_HEALTH_LISTEN=0.0.0.0:50052 \
    ALLM_METRICS_HOST=0.0.0.0
WORKDIR /var/lib/allm
USER 10001:10001
EXPOSE 50051 50052 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-m", "services.rpc.probe", "readiness"]
CMD ["python", "-m", "services.image"]

# The audio service, with CTranslate2's runtime. From the root of the repository:
#   docker build --file containers/audio.Dockerfile --tag allm-audio .
# With CUDA: --build-arg VARIANT=cuda. Whisper's own code, which brings torch: --build-arg EXTRAS=audio,whisper,redis,traces
ARG VARIANT=cpu
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=audio,redis,traces
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/allm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --constraint constraints.txt ".[${EXTRAS}]"

FROM build-cpu AS build-cuda
# CTranslate2's wheels open libcublas.so.12 when they find a GPU, and do not bring it.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install "nvidia-cublas-cu12>=12.4,<13"

FROM build-${VARIANT} AS build

FROM ${PYTHON_IMAGE} AS run-cpu

FROM ${PYTHON_IMAGE} AS run-cuda
ENV LD_LIBRARY_PATH=/opt/allm/lib/python3.11/site-packages/nvidia/cublas/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM run-${VARIANT}
RUN groupadd --gid 10001 allm \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/allm --no-create-home --shell /usr/sbin/nologin allm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/allm /models
COPY --from=build /opt/allm /opt/allm
ENV PATH=/opt/allm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/allm \
    ALLM_HOME=/var/lib/allm \
    ALLM_MODELS_DIR=/models \
    ALLM_LISTEN=0.0.0.0:50051 \
    ALLM_HEALTH_LISTEN=0.0.0.0:50052 \
    ALLM_METRICS_HOST=0.0.0.0
WORKDIR /var/lib/allm
USER 10001:10001
EXPOSE 50051 50052 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-m", "services.rpc.probe", "readiness"]
CMD ["python", "-m", "services.audio"]

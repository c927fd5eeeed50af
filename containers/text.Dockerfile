# The text service. From the root of the repository:
#   docker build --file containers/text.Dockerfile --tag allm-text .
# With CUDA: --build-arg VARIANT=cuda. This compiles llama.cpp for the GPUs of CUDA_ARCHITECTURES. On x86-64 the usual index
# has torch with CUDA's libraries, some gigabytes; without a GPU add PyTorch's index of CPU wheels:
# --build-arg PIP_EXTRA_INDEX_URL=... For GGUF models alone, without torch: --build-arg EXTRAS=text,redis,traces
ARG VARIANT=cpu
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# Its CUDA must match that of torch's wheels, from which the image takes the libraries.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu22.04

# llama.cpp for any x86-64 CPU with AVX2 or any 64-bit ARM, not only for the build machine's.
FROM ${PYTHON_IMAGE} AS llama-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN apt-get update && apt-get install --yes --no-install-recommends g++ gcc make \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt containers/llama_wheel.cmake containers/llama_fixes.h containers/llama_bf16.c /src/
# No cache: it may hold a wheel that was built with other CMAKE_ARGS.
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

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=text,torch,redis,traces
WORKDIR /src
COPY . .
COPY --from=llama /wheels /wheels
RUN python -m venv --without-pip /opt/allm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --find-links /wheels --constraint constraints.txt ".[${EXTRAS}]"

FROM ${PYTHON_IMAGE} AS run-cpu

FROM ${PYTHON_IMAGE} AS run-cuda
# libcudart and libcublas from torch's wheels, for llama.cpp.
ENV LD_LIBRARY_PATH=/opt/allm/lib/python3.11/site-packages/nvidia/cu13/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM run-${VARIANT}
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
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
    ALLM_LISTEN=0.0.0.0:50051 \
    ALLM_HEALTH_LISTEN=0.0.0.0:50052 \
    ALLM_METRICS_HOST=0.0.0.0
WORKDIR /var/lib/allm
USER 10001:10001
EXPOSE 50051 50052 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-m", "services.rpc.probe", "readiness"]
CMD ["python", "-m", "services.text"]

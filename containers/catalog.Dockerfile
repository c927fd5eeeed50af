# The catalog of models and API keys. From the root of the repository:
#   docker build --file containers/catalog.Dockerfile --tag allm-catalog .
# An index for pip in addition to the usual one: --build-arg PIP_EXTRA_INDEX_URL=..., or PIP_INDEX_URL for a mirror.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
# Without pip: nothing is installed into a running container.
RUN python -m venv --without-pip /opt/allm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --constraint constraints.txt ".[traces]"

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 allm \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/allm --no-create-home --shell /usr/sbin/nologin allm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/allm
COPY --from=build /opt/allm /opt/allm
ENV PATH=/opt/allm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/allm \
    ALLM_HOME=/var/lib/allm \
    ALLM_LISTEN=0.0.0.0:50050 \
    ALLM_HEALTH_LISTEN=0.0.0.0:50052 \
    ALLM_METRICS_HOST=0.0.0.0
WORKDIR /var/lib/allm
USER 10001:10001
EXPOSE 50050 50052 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-m", "services.rpc.probe", "readiness"]
CMD ["python", "-m", "services.catalog"]

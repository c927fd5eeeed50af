# The gateway, Envoy, and with another command the authorizer (python -m services.authorizer). From the repository's root:
#   docker build --file containers/gateway.Dockerfile --tag allm-gateway .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/allm
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/allm/bin/python install --constraint constraints.txt ".[gateway,redis,traces]"

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 allm \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/allm --no-create-home --shell /usr/sbin/nologin allm \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/allm
COPY --from=build /opt/allm /opt/allm
# ALLM_HOST: outside the container's own loopback, the gateway listens only with ALLM_AUTH=keys or open.
ENV PATH=/opt/allm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/allm \
    ALLM_HOME=/var/lib/allm \
    ALLM_HOST=0.0.0.0 \
    ALLM_PORT=8080 \
    ALLM_METRICS_HOST=0.0.0.0 \
    ALLM_GATEWAY_METRICS_HOST=0.0.0.0 \
    ALLM_GATEWAY_METRICS_PORT=9901
WORKDIR /var/lib/allm
USER 10001:10001
EXPOSE 8080 9901
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["python", "-m", "gateway.probe", "live"]
CMD ["allm", "gateway"]

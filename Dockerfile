# syntax=docker/dockerfile:1
# docs/deploying.md says how to build it and how to add plugins.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

# ---------------------------------------------------------------------------------------------------------------- build
FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# The tools that build the wheel stay in this stage; what runs is what the lock names, hash by hash.
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --require-hashes --only-binary :all: --requirement requirements/build.txt
RUN python -m venv /opt/outboxd \
    && /opt/outboxd/bin/python -m pip install --require-hashes --only-binary :all: --requirement requirements/runtime.txt

COPY pyproject.toml README.md LICENSE ./
COPY daemon daemon
COPY plugins plugins
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /opt/dist . \
    && /opt/outboxd/bin/python -m pip install --no-deps --no-index --find-links /opt/dist outboxd \
    && /opt/outboxd/bin/python -m pip freeze --exclude outboxd > /opt/outboxd/constraints.txt

# Packages of your own, separated by spaces: --build-arg PLUGINS="shop-plugins==1.4.0". They cannot change what is locked.
ARG PLUGINS=""
RUN for plugin in ${PLUGINS}; do \
        /opt/outboxd/bin/python -m pip install --constraint /opt/outboxd/constraints.txt "${plugin}" || exit 1; \
    done \
    && /opt/outboxd/bin/python -m pip check \
    && /opt/outboxd/bin/python -m compileall -q /opt/outboxd/lib

# ------------------------------------------------------------------------------------------------------------------ run
FROM ${PYTHON_IMAGE} AS run
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="outboxd" \
      org.opencontainers.image.description="Transactional outbox relay from Postgres to Kafka, handler plugins, and a dead-letter chain that loses nothing" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

COPY --from=build /opt/outboxd /opt/outboxd
# A cluster may run it as any user, always in group 0. Target states, and a spool unless it has a volume, live in the folder.
RUN install --directory /etc/outboxd \
    && install --directory --mode=2770 --owner=65532 --group=0 /var/lib/outboxd

ENV PATH=/opt/outboxd/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/outboxd \
    OUTBOXD_STATE_DIR=/var/lib/outboxd \
    OUTBOXD_TELEMETRY__LOGS__FORMAT=json

WORKDIR /var/lib/outboxd
USER 65532:0
EXPOSE 8083
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/outboxd/bin/outboxd"]
CMD ["run", "-c", "/etc/outboxd"]

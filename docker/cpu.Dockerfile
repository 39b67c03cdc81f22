# Images of Ludus for hosts without a GPU.
#
#   docker build -f docker/cpu.Dockerfile --target server -t ludus-server .   api, gateway, controller, migrate: no torch
#   docker build -f docker/cpu.Dockerfile --target worker -t ludus-worker .   trains on the CPU
#
# --build-arg PIP_EXTRA_INDEX_URL=... names a package index with CPU-only builds of torch: the worker's image is several
# gigabytes smaller with it.
# --build-arg BASE=python:3.11-slim-bookworm takes the newest base image (docs/kubernetes.md, "Images").
# Packages are installed by their hashes (docker/*.lock, `make locks`), except torch, whose build the index decides. Each
# image holds a list of all its Python packages: /usr/share/doc/ludus/sbom.cdx.json (CycloneDX).
# --build-arg COMMIT=$(git rev-parse HEAD) puts the commit into the fingerprints of runs.

ARG BASE=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${BASE} AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LUDUS_HOME=/var/lib/ludus
RUN useradd --system --uid 1000 --create-home ludus && install -d -o ludus -g ludus /var/lib/ludus /var/lib/ludus/artifacts /var/lib/ludus/scratch /var/lib/ludus/tls
COPY --chmod=755 docker/health /usr/local/bin/ludus-health
WORKDIR /opt/ludus
COPY pyproject.toml constraints.txt README.md ./
COPY proto proto
# The dependencies are a layer of their own, which changes of the code do not invalidate. An editable installation reads
# the code in place, so empty packages are enough for it.
RUN mkdir ludus server worker && touch ludus/__init__.py server/__init__.py worker/__init__.py

FROM base AS server-packages
COPY docker/server.lock docker/prune docker/
RUN pip install --require-hashes --no-deps --requirement docker/server.lock \
    && pip install --no-deps --no-build-isolation --editable . \
    && sh docker/prune

FROM server-packages AS server-sbom
RUN python -m venv /opt/sbom && /opt/sbom/bin/pip install 'cyclonedx-bom==7.5.0' \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json /usr/local/bin/python

FROM server-packages AS server
COPY --from=server-sbom /sbom.cdx.json /usr/share/doc/ludus/
COPY ludus ludus
COPY server server
COPY migrations migrations
USER ludus
VOLUME /var/lib/ludus
EXPOSE 8080 7070
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["ludus-health", "api"]
ENTRYPOINT ["ludus"]
CMD ["server"]

FROM base AS worker-packages
ARG PIP_EXTRA_INDEX_URL
COPY docker/worker.lock docker/prune docker/
RUN pip install --require-hashes --no-deps --requirement docker/worker.lock \
    && pip install --constraint constraints.txt torch \
    && pip install --no-deps --no-build-isolation --editable . \
    && sh docker/prune

FROM worker-packages AS worker-sbom
RUN python -m venv /opt/sbom && /opt/sbom/bin/pip install 'cyclonedx-bom==7.5.0' \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json /usr/local/bin/python

FROM worker-packages AS worker
COPY --from=worker-sbom /sbom.cdx.json /usr/share/doc/ludus/
COPY ludus ludus
COPY server server
COPY worker worker
COPY migrations migrations
ARG COMMIT=""
ENV LUDUS_WORKER__COMMIT=$COMMIT
USER ludus
VOLUME /var/lib/ludus
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["ludus-health", "worker"]
ENTRYPOINT ["ludus"]
CMD ["worker"]

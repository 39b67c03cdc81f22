# The image of a worker that trains on NVIDIA GPUs. The host needs NVIDIA's driver and container toolkit.
#
#   docker build -f docker/gpu.Dockerfile -t ludus-worker-gpu .
#
# torch brings the CUDA libraries that it was built with; the base gives the driver's entry points and its variables.

# --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 takes the newest base image. Packages are installed by their hashes,
# except torch with its CUDA libraries; /usr/share/doc/ludus/sbom.cdx.json lists them all (CycloneDX).

ARG BASE=nvidia/cuda:13.0.1-base-ubuntu24.04@sha256:f8ef28f579ea42a44b415d2c5d46f788e6a9b395c6c83f2929416e1fc192c143
FROM ${BASE} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LUDUS_HOME=/var/lib/ludus \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PATH=/opt/venv/bin:$PATH
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv \
    && userdel --remove ubuntu \
    && useradd --system --uid 1000 --create-home ludus \
    && install -d -o ludus -g ludus /var/lib/ludus /var/lib/ludus/artifacts /var/lib/ludus/scratch /var/lib/ludus/tls
COPY --chmod=755 docker/health /usr/local/bin/ludus-health
WORKDIR /opt/ludus
COPY pyproject.toml constraints.txt README.md ./
COPY proto proto
COPY docker/worker.lock docker/prune docker/
RUN mkdir ludus server worker && touch ludus/__init__.py server/__init__.py worker/__init__.py \
    && pip install --require-hashes --no-deps --requirement docker/worker.lock \
    && pip install --constraint constraints.txt torch \
    && pip install --no-deps --no-build-isolation --editable . \
    && sh docker/prune

FROM packages AS sbom
RUN python3 -m venv /opt/sbom && /opt/sbom/bin/pip install 'cyclonedx-bom==7.5.0' \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json /opt/venv/bin/python

FROM packages
COPY --from=sbom /sbom.cdx.json /usr/share/doc/ludus/
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

# What the pods of a training job run in: Paddle, VisualDL to write logs for it, and cloudedge to read data and to pack
# and push what comes out.
#
#   BASE         a Debian or Ubuntu with python3 (3.10 or newer), its venv module and libgomp1; `image build
#                --strict` takes it by digest only
#   WHEELHOUSE   a directory of the build context; with wheels and their hashes in it, the build needs no network
#   REQUIREMENT  what to install; the wheelhouse has to hold it and all it needs
#
# It has no script of yours: build FROM it and add one, or mount one. A job names its own command, so there is no
# entrypoint; and its pods are done when they end, so there is no health check.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
ARG WHEELHOUSE=wheelhouse
ARG REQUIREMENT="cloudedge[paddle,visualdl]"
COPY ${WHEELHOUSE}/ /wheelhouse/
COPY install.sh constraints.txt /tmp/
RUN python3 -m venv /opt/cloudedge \
 && CONSTRAINTS=/tmp/constraints.txt sh /tmp/install.sh /opt/cloudedge "$REQUIREMENT" \
 && /opt/cloudedge/bin/pip uninstall --yes --quiet pip \
 && /opt/cloudedge/bin/python -B -W ignore -c "import cloudedge._core, paddle, visualdl"

FROM ${BASE}
# Paddle keeps a cache in the home directory, and its launcher writes logs into the working directory.
RUN useradd --system --uid 10001 --create-home --home-dir /job --shell /usr/sbin/nologin trainer
COPY --from=build /opt/cloudedge /opt/cloudedge
ENV PATH=/opt/cloudedge/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/job
USER 10001
WORKDIR /job
LABEL cloudedge.image=trainer
CMD ["python"]

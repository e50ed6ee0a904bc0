# The launcher of pipeline steps, and VisualDL. Neither has a health check: a step's pod ends, and VisualDL's says how to
# ask it.
#
#   BASE         a Debian or Ubuntu with python3 (3.10 or newer) and its venv module;
#                `cloudedge image build --strict` takes it by digest only
#   WHEELHOUSE   a directory of the build context; with wheels and their hashes in it, the build needs no network
#   REQUIREMENT  what to install; the wheelhouse has to hold it and all it needs
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
ARG WHEELHOUSE=wheelhouse
ARG REQUIREMENT="cloudedge[k8s,s3,visualdl]"
COPY ${WHEELHOUSE}/ /wheelhouse/
COPY install.sh constraints.txt /tmp/
RUN python3 -m venv /opt/cloudedge \
 && CONSTRAINTS=/tmp/constraints.txt sh /tmp/install.sh /opt/cloudedge "$REQUIREMENT" \
 && /opt/cloudedge/bin/pip uninstall --yes --quiet pip \
 && /opt/cloudedge/bin/python -B -c "import boto3, cloudedge._core, kubernetes, visualdl"

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin pipeline
COPY --from=build /opt/cloudedge /opt/cloudedge
# A step's command begins with python3: it is this one. VisualDL writes into the home directory when it is imported.
ENV PATH=/opt/cloudedge/bin:$PATH PYTHONDONTWRITEBYTECODE=1 CLOUDEDGE_HOME=/tmp/cloudedge HOME=/tmp
USER 10001
WORKDIR /tmp
LABEL cloudedge.image=pipeline
ENTRYPOINT ["python3", "-m", "cloudedge.pipeline"]

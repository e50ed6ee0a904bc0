# One shard of a cube: keeps its versions in /data and answers on 8027, takes orders on 8028.
#
#   BASE         a Debian or Ubuntu with python3 (3.10 or newer) and its venv module;
#                `cloudedge image build --strict` takes it by digest only
#   WHEELHOUSE   a directory of the build context; with wheels and their hashes in it, the build needs no network
#   REQUIREMENT  what to install; the wheelhouse has to hold it and all it needs
#
# Orders need a token, in CLOUDEDGE_CUBE_TOKEN or with --token-file. Healthy means that the server lives: an empty shard
# waits for its first delivery. Whether a version answers is what GET /ready on 8028 says.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
ARG WHEELHOUSE=wheelhouse
ARG REQUIREMENT="cloudedge"
COPY ${WHEELHOUSE}/ /wheelhouse/
COPY install.sh constraints.txt /tmp/
RUN python3 -m venv /opt/cloudedge \
 && CONSTRAINTS=/tmp/constraints.txt sh /tmp/install.sh /opt/cloudedge "$REQUIREMENT" \
 && /opt/cloudedge/bin/pip uninstall --yes --quiet pip \
 && /opt/cloudedge/bin/python -B -c "import cloudedge._core"

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin cube \
 && install --directory --owner 10001 /data
COPY --from=build /opt/cloudedge /opt/cloudedge
ENV PATH=/opt/cloudedge/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8027 8028
LABEL cloudedge.image=cube
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
  CMD ["/opt/cloudedge/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8028/health', timeout=2)"]
ENTRYPOINT ["cloudedge", "cube", "serve", "/data", "--state", "/data", "--empty", "--open", "--host", "0.0.0.0", "--admin-host", "0.0.0.0"]

# cloudedge's own runtime.
#
#   BASE         a Debian or Ubuntu with python3 (3.10 or newer), its venv module and libgomp1;
#                `cloudedge image build --strict` takes it by digest only
#   WHEELHOUSE   a directory of the build context; with wheels and their hashes in it, the build needs no network
#   REQUIREMENT  what to install; the wheelhouse has to hold it and all it needs
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
ARG WHEELHOUSE=wheelhouse
ARG REQUIREMENT="cloudedge[serve,paddle]"
COPY ${WHEELHOUSE}/ /wheelhouse/
COPY install.sh constraints.txt /tmp/
# No installer, no tests and no compiled copies stay: Paddle alone is most of the image.
RUN python3 -m venv /opt/cloudedge \
 && CONSTRAINTS=/tmp/constraints.txt sh /tmp/install.sh /opt/cloudedge "$REQUIREMENT" \
 && /opt/cloudedge/bin/pip uninstall --yes --quiet pip \
 && /opt/cloudedge/bin/python -B -W ignore -c "import cloudedge._core, paddle"

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin serving
# On edge nodes, what checks a revision makes its folders here before the server starts.
RUN install -d -o 10001 /cloudedge /home/work
COPY --from=build /opt/cloudedge /opt/cloudedge
ENV PATH=/opt/cloudedge/bin:$PATH PYTHONDONTWRITEBYTECODE=1 CLOUDEDGE_HOME=/models
USER 10001
WORKDIR /tmp
EXPOSE 9393
LABEL cloudedge.image=serving
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
  CMD ["/opt/cloudedge/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9393/readyz', timeout=2)"]
ENTRYPOINT ["cloudedge", "serve"]

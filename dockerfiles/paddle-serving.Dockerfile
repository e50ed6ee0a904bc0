# Stock Paddle Serving 0.9.0, the last release, on the newest Python it was made for.
#
#   BASE         a Debian or Ubuntu with python3.9, its venv module and libgomp1;
#                `cloudedge image build --strict` takes it by digest only
#   WHEELHOUSE   a directory of the build context; with wheels and their hashes in it, the build needs no network
#
# docker run IMAGE MODEL_DIR NAME RPC_PORT HTTP_PORT [--tuned]
ARG BASE=python:3.9-slim-bullseye
FROM ${BASE} AS build
ARG WHEELHOUSE=wheelhouse
COPY ${WHEELHOUSE}/ /wheelhouse/
COPY install.sh paddle-serving/requirements.txt paddle-serving/requirements-alone.txt /tmp/
RUN python3.9 -m venv /opt/serving \
 && sh /tmp/install.sh /opt/serving --requirement /tmp/requirements.txt \
 && sh /tmp/install.sh /opt/serving --no-deps --requirement /tmp/requirements-alone.txt \
 && /opt/serving/bin/pip uninstall --yes --quiet pip

FROM ${BASE}
# It writes logs and a list of its processes into the working directory.
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/serving --shell /usr/sbin/nologin serving
# On edge nodes, what checks a revision makes its folders here before the server starts.
RUN install -d -o 10001 /cloudedge /home/work
COPY --from=build /opt/serving /opt/serving
COPY paddle-serving/web_service.py /opt/serving/
ENV PATH=/opt/serving/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /var/lib/serving
EXPOSE 9998 18080
LABEL cloudedge.image=paddle-serving
# It has no health endpoint. A service name it does not know is refused by the same process that runs the model.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
  CMD ["/opt/serving/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9998/-/health', b'{}', timeout=2)"]
ENTRYPOINT ["/opt/serving/bin/python", "/opt/serving/web_service.py"]
CMD ["/models", "model", "18080", "9998"]

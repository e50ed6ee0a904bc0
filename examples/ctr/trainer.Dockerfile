# The trainer with the click model's program in it, where pipeline.py looks for it.
#
#   docker build --tag ctr-trainer --build-arg BASE=cloudedge-trainer:1 \
#     --file examples/ctr/trainer.Dockerfile examples/ctr
#
#   BASE   the image of dockerfiles/trainer.Dockerfile, best by digest, as `cloudedge image push` prints it
ARG BASE
FROM ${BASE}
COPY clicks.py job.py network.py task.py /job/examples/ctr/

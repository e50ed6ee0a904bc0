# The trainer with the click model's program in it, where pipeline.py looks for it.
#
#   docker build --tag ctr-trainer --file examples/ctr/trainer.Dockerfile examples/ctr
ARG BASE=cloudedge-trainer:latest
FROM ${BASE}
COPY clicks.py job.py network.py task.py /job/examples/ctr/

"""The click model as a pipeline: data set, training, model hub, serving, VisualDL.

    python examples/ctr/task.py draw --output out/clicks --count 60000
    cloudedge pipeline run examples/ctr/pipeline.py --local --set source=file://$PWD/out/clicks

runs it on this machine; `cloudedge pipeline submit --host URL` runs the same graph on Kubeflow, where `source` is a
bucket. The images are those of

    cloudedge image build pipeline serving trainer
    docker build -t ctr-trainer --build-arg BASE=cloudedge-trainer -f examples/ctr/trainer.Dockerfile examples/ctr

pushed to where the cluster pulls from: `--set image=registry/ctr-trainer:1`, and CLOUDEDGE_PIPELINE_IMAGE.
"""

from kfp import dsl

from cloudedge.pipeline import component


@dsl.pipeline(name="ctr", description="A click model, from its data to its answers.")
def ctr(  # noqa: PLR0917 - a pipeline's parameters are its options
    source: str,
    version: str = "latest",
    changes: str = "epochs=2",
    program: str = "examples/ctr/task.py",
    claim: str = "task-center",
    image: str = "ctr-trainer:latest",
    serving_image: str = "cloudedge-serving:latest",
    serving_port: int = 9292,
    visualdl_port: int = 8040,
) -> None:
    """Train on the clicks of `source` and answer with what was learned."""
    data = component("dataset")(name="clicks", source_uri=source, source_secret="none")  # noqa: S106 - public data
    training = component("training")(
        name="ctr",
        project="Script",
        image=image,
        config_path=program,
        config_changes=changes,
        dataset="clicks",
        pvc_name=claim,
        worker_replicas=1,
    ).after(data)
    model = component("modelhub")(name="ctr", model_name="ctr", model_version=version, pvc_name=claim).after(training)
    service = component("serving")(
        name="ctr", image=serving_image, model_name="ctr", model_version=version, port=serving_port, server="cloudedge"
    ).after(model)
    component("visualdl")(
        name="ctr-logs", pvc_name=claim, logdir="/mnt/task-center/models/vdl/", port=visualdl_port
    ).after(service)

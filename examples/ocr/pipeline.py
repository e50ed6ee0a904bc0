"""PP-OCR text detection: from ICDAR 2015 to a service, with the arguments of PaddleCloud's own example.

    cloudedge pipeline render examples/ocr/pipeline.py              # for Kubeflow
    cloudedge pipeline render examples/ocr/pipeline.py --objects    # what its steps make
    cloudedge pipeline submit examples/ocr/pipeline.py --host http://ml-pipeline-ui

It needs what README.md beside it lists, and GPUs.
"""

from kfp import dsl, kubernetes

from cloudedge.pipeline import component


@dsl.pipeline(name="ppocr-detection-demo", description="An example for using ppocr train.")
def ppocr_detection() -> None:
    """Train a text detector and serve it."""
    volume = kubernetes.CreatePVC(
        pvc_name_suffix="-ppocr-detection-pvc",
        access_modes=["ReadWriteMany"],
        size="10Gi",
        storage_class_name="task-center",
    )
    volume.set_caching_options(enable_caching=False)
    claim = volume.outputs["name"]
    data = component("dataset")(
        name="icdar2015",
        partitions=1,
        source_secret="data-source",  # noqa: S106 - the secret's name
        source_uri="bos://paddleflow-public.hkg.bcebos.com/icdar2015/",
    )
    training = component("training")(
        name="ppocr-det",
        dataset="icdar2015",
        project="PaddleOCR",
        worker_replicas=1,
        gpu_per_node=1,
        use_visualdl=True,
        train_label="train_icdar2015_label.txt",
        test_label="test_icdar2015_label.txt",
        config_path="configs/det/det_mv3_db.yml",
        pvc_name=claim,
        image="registry.baidubce.com/paddleflow-public/paddleocr:2.1.3-gpu-cuda10.2-cudnn7",
        config_changes="Global.epoch_num=10,Global.log_smooth_window=2,Global.save_epoch_step=5",
        pretrain_model="https://paddle-imagenet-models-name.bj.bcebos.com/dygraph/MobileNetV3_large_x0_5_pretrained.pdparams",
    ).after(data)
    model = component("modelhub")(
        name="ppocr-det", model_name="ppocr-det", model_version="latest", pvc_name=claim
    ).after(training)
    component("serving")(
        name="ppocr-det",
        model_name="ppocr-det",
        model_version="latest",
        port=9292,
        image="registry.baidubce.com/paddleflow-public/serving:v0.6.2",
    ).after(model)

#! /usr/bin/env bash
cd /home/work/yolov3
python3 web_service.py

#!/bin/sh
# Rewrites pulsar_pb2.py and pulsar_pb2.pyi from pulsar.proto; needs the `dev` extra. PYTHON names the
# interpreter (default: python), whose folder must hold mypy-protobuf's protoc-gen-mypy.
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-python}"
bin="$("$python" -c 'import os, sys; print(os.path.dirname(sys.executable))')"
PATH="$bin:$PATH" "$python" -m grpc_tools.protoc -I . --python_out=. --mypy_out=. \
    pulsar_encore/wire/pulsar.proto

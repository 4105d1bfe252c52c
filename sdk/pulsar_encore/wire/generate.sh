#!/bin/sh
# Rewrites pulsar_pb2.py and pulsar_pb2.pyi from pulsar.proto. PYTHON names the interpreter (default:
# python); it needs mypy-protobuf and grpcio-tools 1.75: code of a newer one refuses the protobuf
# 6.31 that this package still supports, while code for 6.31 runs on 6.31 and on 7.
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-python}"
case "$("$python" -m grpc_tools.protoc --version)" in
    "libprotoc 31."*) ;;
    *) echo "generate.sh: install grpcio-tools==1.75.* first" >&2; exit 1 ;;
esac
bin="$(dirname "$("$python" -c 'import sys; print(sys.executable)')")"
PATH="$bin:$PATH" "$python" -m grpc_tools.protoc -I . --python_out=. --mypy_out=. \
    pulsar_encore/wire/pulsar.proto

#!/bin/sh
# What our image has of the `bin/pulsar` of Apache's: `pulsar standalone [OPTION ...]`.
set -eu
test "${1-}" = standalone || { echo "this image only runs: pulsar standalone" >&2; exit 64; }
shift
# shellcheck disable=SC2086  # PULSAR_MEM is several words
exec java ${PULSAR_MEM:--Xmx1g} @/pulsar/jvm.options -cp '/pulsar/lib/*' \
    org.apache.pulsar.PulsarStandaloneStarter --config "$PULSAR_STANDALONE_CONF" "$@"

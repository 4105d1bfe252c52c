#!/bin/sh
# Starts a standalone Pulsar inside either image: with the settings of standalone.conf beside this
# file, then those that the environment names, as PULSAR_PREFIX_<setting>=<value>.
set -eu
export PULSAR_STANDALONE_CONF=/tmp/standalone.conf
{
    cat "$(dirname "$0")/standalone.conf"
    env | sed -n 's/^PULSAR_PREFIX_//p'
} > "$PULSAR_STANDALONE_CONF"
cd /pulsar
exec bin/pulsar standalone --no-functions-worker --no-stream-storage

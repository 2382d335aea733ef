#!/usr/bin/env bash
# A whole federation on this machine: a SuperLink and three SuperNodes on loopback, with TLS and a key
# for every site, train on handwritten digits. Ends everything that it has started.
#
#   examples/flower/loopback.sh [FOLDER] [settings of the run, as for flwr run --run-config]
#
# FOLDER gets the app, keys, logs, the sites' own files and the results; by default a new temporary
# folder. Needs pfedfda[flower], openssl and ssh-keygen.
set -euo pipefail

folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
settings=${2:-rounds=3 epochs=2}
port=${PORT:-8123}
sites=(vilnius kaunas klaipeda)

# Nothing phones home, and nothing is installed when a run starts.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$folder/flwr"

mkdir -p "$FLWR_HOME"
cd "$folder"

started=()
stop() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap stop EXIT

[ -d app ] || pfedfda federate init app

echo "Certificates and keys in $folder"
{
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 2 \
        -subj /CN=federation-ca -keyout ca.key -out ca.crt
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj /CN=superlink \
        -addext subjectAltName=IP:127.0.0.1 -keyout superlink.key -out superlink.csr
    openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
        -copy_extensions copy -out superlink.crt
} 2>openssl.log
for site in "${sites[@]}"; do
    [ -f "$site" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -f "$site"
done

cat >"$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "loopback"

[superlink.loopback]
address = "127.0.0.1:$port"
root-certificates = "$folder/ca.crt"
TOML

echo "The SuperLink on port $port"
flower-superlink --host 127.0.0.1 --port "$port" --enable-supernode-auth \
    --ssl-ca-certfile ca.crt --ssl-certfile superlink.crt --ssl-keyfile superlink.key \
    >superlink.log 2>&1 &
started+=($!)
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 "${started[0]}" || { tail superlink.log; exit 1; }
    sleep 0.5
done

for number in "${!sites[@]}"; do
    site=${sites[$number]}
    echo "The site $site"
    flwr supernode register "$site.pub" loopback >>register.log
    flower-supernode --superlink "127.0.0.1:$port" --port $((port + 1 + number)) \
        --root-certificates ca.crt --auth-supernode-private-key "$site" \
        --node-config "name=\"$site\" partition-id=$number state-dir=\"$folder/sites\"" \
        >"$site.log" 2>&1 &
    started+=($!)
done

flwr run app loopback --stream --run-config "output=\"$folder/runs\" $settings"
echo "Personal models:"
ls -d "$folder"/sites/*/*/model

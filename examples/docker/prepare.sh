#!/usr/bin/env bash
# Makes the folder `federation` of compose.yaml, in the present folder: the app, certificates, a key
# for every site, and for a trial a third of the handwritten digits each.
#
#   prepare.sh [ADDRESS OF THE SERVER]
#
# Needs pfedfda, openssl and ssh-keygen.
set -euo pipefail

address=${1:+,IP:$1}
sites=(vilnius kaunas klaipeda)

pfedfda federate init federation/server
cd federation
mkdir -p server/flwr

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365 \
    -subj /CN=federation-ca -keyout ca.key -out ca.crt
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj /CN=superlink \
    -addext "subjectAltName=IP:127.0.0.1,DNS:superlink$address" \
    -keyout server/superlink.key -out superlink.csr
openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
    -copy_extensions copy -out server/superlink.crt
cp ca.crt server

# In the container all addresses are the container's own.
sed -i 's/listen 127.0.0.1:8443 ssl/listen 8443 ssl/' server/nginx.conf

cat >server/flwr/config.toml <<'TOML'
[superlink]
default = "federation"

[superlink.federation]
address = "127.0.0.1:8123"
root-certificates = "/federation/ca.crt"
TOML

for site in "${sites[@]}"; do
    mkdir -p "$site" "state/$site"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$site" -f "$site/key"
    cp ca.crt "$site"
    cp "$site/key.pub" "server/$site.pub"
done

python3 - "${sites[@]}" <<'PYTHON'
import sys

import numpy as np
from sklearn.datasets import load_digits

digits, sites = load_digits(), sys.argv[1:]
for number, site in enumerate(sites):
    images = (digits.images[number :: len(sites)] * 255 / 16).astype(np.uint8)
    np.savez(f"{site}/data.npz", images=images, labels=digits.target[number :: len(sites)])
PYTHON

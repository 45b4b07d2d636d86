#!/bin/bash
# s3s-fs 0.14.1 (and 0.17.0, by its source) and boto3 1.43.11: objects whose keys have "%" or "+" are listed, and cannot
# be read by the name under which they are listed.
#
# ListObjectsV2 has the parameter encoding-type=url, with which a store sends keys encoded, and says so in EncodingType.
# The server repeats EncodingType and does not encode the keys. boto3 requests encoded keys by itself, and decodes what
# it gets: "x%20y" is listed as "x y", and "a+b" as "a b". get_object for that key answers NoSuchKey.
#
# Seen on Linux amd64, 2026-11-30. The script needs cargo with Rust 1.92, and Python 3 with venv; it builds the server,
# which takes minutes. It fails if the behaviour changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
server=
cargo install --quiet --locked s3s-fs --version 0.14.1 --features binary --root "$dir"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet boto3==1.43.11
mkdir "$dir/root"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/bin/s3s-fs" --host 127.0.0.1 --port "$port" --access-key id --secret-key secret "$dir/root" >"$dir/log" 2>&1 &
server=$!
until (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
	kill -0 "$server" || { cat "$dir/log"; exit 1; }
	sleep 0.1
done
"$dir/venv/bin/python" - "$port" <<'END_PYTHON' | tee "$dir/out"
import sys

import boto3
from botocore.config import Config

s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{sys.argv[1]}", aws_access_key_id="id", aws_secret_access_key="secret",
                  region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))
s3.create_bucket(Bucket="bucket")
for key in "x%20y", "a+b":
    s3.put_object(Bucket="bucket", Key=key, Body=b"content")
for listed in s3.list_objects_v2(Bucket="bucket")["Contents"]:
    try:
        s3.get_object(Bucket="bucket", Key=listed["Key"])
        print(f"{listed['Key']}: can be read")
    except s3.exceptions.NoSuchKey:
        print(f"{listed['Key']}: NoSuchKey")
END_PYTHON
grep -qx 'x y: NoSuchKey' "$dir/out"
grep -qx 'a b: NoSuchKey' "$dir/out"
[ "$(wc -l <"$dir/out")" = 2 ]

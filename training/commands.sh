#!/bin/sh
# How the bundled models, their retrieval heads, recordings and figures were made. byte-large and byte-small took an hour
# of one core each; byte-long two runs of 7.2 minutes on an H100, the second from the first's weights at --batch-tokens
# 73728 --rate 2.4e-3.
set -e
apt-get download python3.11-doc && dpkg -x python3.11-doc_*.deb doc
SOURCES=doc/usr/share/doc/python3.11/html/_sources
python training/train.py byte-large --documentation $SOURCES --output out/byte-large --minutes 60
python training/train.py byte-long --documentation $SOURCES --output out/byte-long --minutes 7.2 \
    --start out/byte-large --device cuda --batch-tokens 131072 --workers 4 --rate 4e-3
python training/evaluate.py out/byte-large --documentation $SOURCES --figures out/figures
python training/evaluate.py --figures out/figures --page docs/models.md
python training/record.py --documentation $SOURCES
python training/distil_head.py byte-large --output model/bundled/byte-large --minutes 10
python training/distil_head.py byte-long --output model/bundled/byte-long --minutes 11 --threads 3
python training/distil_head.py byte-small --output model/bundled/byte-small --minutes 6 --width 16

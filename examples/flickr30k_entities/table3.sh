#!/usr/bin/env bash
# Table 3: the final model on the test split: attention distilled from POS-SCAN, then self-critical training with
# CIDEr and SCAN's matching score; beside it the same captioner without any of it.
#
#   examples/flickr30k_entities/table3.sh DATA [OUT]      or --smoke [OUT]
#
# With a folder prepared from GVD's regions (the paper's dagger rows) give WEIGHT=0.2 FEATURES=_gvd and another OUT.
set -euo pipefail
. "$(dirname "$0")/recipe.sh"

final=up_down_pos_scan_sc_scan
pretrained up_down none
pretrained up_down_pos_scan pos_scan "${WEIGHT:-0.1}"
finetuned $final up_down_pos_scan scan
written up_down test
written up_down_pos_scan test
written $final test
if [ -n "${FEATURES:-}" ]; then
    for seed in $seeds; do cp "$out/$final.seed$seed.test.written.jsonl" "$out/$final$FEATURES.seed$seed.test.written.jsonl"; done
    final=$final$FEATURES
fi
table table3 test written up_down up_down_pos_scan $final

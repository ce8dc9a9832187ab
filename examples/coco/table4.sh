#!/usr/bin/env bash
# Table 4: captions on MS-COCO's Karpathy test split, beam 3: without and with POS-SCAN's supervision, before and after
# self-critical training.
#
#   examples/coco/table4.sh DATA [OUT]      or --smoke [OUT]
set -euo pipefail
. "$(dirname "$0")/../flickr30k_entities/recipe.sh"

# COCO's sizes, batch and weight; no boxes, so captions alone are scored
arch=up_down_coco beam=3 grounded=0
[ -n "$smoke" ] || captioner+=(--batch-size 32)
pretrained up_down none
finetuned up_down_sc_cider up_down cider
pretrained up_down_pos_scan pos_scan 1
finetuned up_down_pos_scan_sc_cider up_down_pos_scan cider
finetuned up_down_pos_scan_sc_scan up_down_pos_scan scan
for name in up_down up_down_sc_cider up_down_pos_scan up_down_pos_scan_sc_cider up_down_pos_scan_sc_scan; do
    written $name test
done
# shellcheck disable=SC2046
table table4 test written $(runs_of table4)

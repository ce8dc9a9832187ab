#!/usr/bin/env bash
# Figure 3: captions and grounding on the validation split against the weight of the distilled attention.
#
#   examples/flickr30k_entities/figure3.sh DATA [OUT]      or --smoke [OUT]
#
# WEIGHTS="0.05 0.1 ..." names the weights (default: 0.05 0.1 0.2 0.5 1); 0 is the captioner without supervision.
set -euo pipefail
. "$(dirname "$0")/recipe.sh"

weights=${WEIGHTS:-0.05 0.1 0.2 0.5 1}
[ -z "$smoke" ] || weights=${WEIGHTS:-0.1 0.5}
runs=(up_down)
pretrained up_down none
written up_down valid
for weight in $weights; do
    # 0.1 is the captioner of the tables
    name=up_down_pos_scan
    [ "$weight" = 0.1 ] || name=up_down_pos_scan_$weight
    pretrained $name pos_scan "$weight"
    written $name valid
    runs+=($name)
done
table figure3 valid written "${runs[@]}"
python examples/flickr30k_entities/curves.py "$out/figure3.csv" --out "$out/figure3.png"
python examples/flickr30k_entities/curves.py "$out/figure3.csv" --out "$out/figure3.pdf"

#!/usr/bin/env bash
# Figures 1 and 4: the captions that models without and with POS-SCAN's supervision write, words and their regions in
# one colour, and the weights of all regions; POS-SCAN itself beside them on given captions.
#
#   IMAGES=flickr30k-images examples/flickr30k_entities/figure4.sh DATA [OUT]      or --smoke [OUT]
#
# IMAGE_IDS=id,id names photographs of the validation split (default: its first three).
set -euo pipefail
. "$(dirname "$0")/recipe.sh"

[ -z "$smoke" ] || IMAGES=$out/pictures/images
[ -n "${IMAGES:-}" ] || { echo "error: say where the photographs are: IMAGES=FOLDER $0 ..." >&2 && exit 2; }
[ -n "$smoke" ] || IMAGES=$(given_path "$IMAGES")
seeds=${seeds%% *}
pretrained up_down none
pretrained up_down_pos_scan pos_scan
for name in up_down up_down_pos_scan; do written $name valid; done
dump pos_scan pos_scan.similarity.valid.given valid --score-reference --readout similarity
given up_down valid
given up_down_pos_scan valid
ids=${IMAGE_IDS:-$(cut -f 2 "$data/valid.captions.tsv" | uniq | head -n 3 | paste -sd ,)}
for ending in png pdf; do
    fairseq-grounding figure "$out/up_down.seed$seeds.valid.written.jsonl" \
        "$out/up_down_pos_scan.seed$seeds.valid.written.jsonl" --names "Up-Down" "Up-Down, taught by POS-SCAN" \
        --images "$IMAGES" --image-ids "$ids" --data "$data" --out "$out/figure4.$ending"
    fairseq-grounding figure "$out/up_down.seed$seeds.valid.given.jsonl" "$out/pos_scan.similarity.valid.given.jsonl" \
        "$out/up_down_pos_scan.seed$seeds.valid.given.jsonl" --names "Up-Down" "POS-SCAN" "Up-Down, taught by POS-SCAN" \
        --images "$IMAGES" --image-ids "$ids" --data "$data" --out "$out/figure1.$ending"
done

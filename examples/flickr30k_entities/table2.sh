#!/usr/bin/env bash
# Table 2: four kinds of attention supervision, each before and after self-critical training with three rewards; the
# captions that each model writes for the validation split, and where it looks while it writes.
#
#   examples/flickr30k_entities/table2.sh DATA [OUT]      or --smoke [OUT]
#
# ROWS="none.none pos_scan.scan ..." (supervision.reward) runs these rows only; the table marks the others as not run.
set -euo pipefail
. "$(dirname "$0")/recipe.sh"

grid=()
for supervision in annotation none scan pos_scan; do
    for reward in none cider scan pos_scan; do grid+=($supervision.$reward); done
done
# the smoke run: each supervision, each reward, not each pair of them
[ -z "$smoke" ] || ROWS=${ROWS:-annotation.none none.none scan.none pos_scan.none none.cider pos_scan.scan}

for row in ${ROWS:-${grid[@]}}; do
    supervision=${row%.*} reward=${row#*.}
    name=$(captioner_name "$supervision")
    pretrained "$name" "$supervision"
    if [ "$reward" != none ]; then
        finetuned "${name}_sc_$reward" "$name" "$reward"
        name=${name}_sc_$reward
    fi
    written "$name" valid
done
# shellcheck disable=SC2046
table table2 valid written $(runs_of table2)

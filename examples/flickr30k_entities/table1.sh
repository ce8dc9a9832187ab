#!/usr/bin/env bash
# Table 1: how often the region of highest attention is the right one, in given captions of the validation split.
#
#   examples/flickr30k_entities/table1.sh DATA [OUT]      or --smoke [OUT]
set -euo pipefail
. "$(dirname "$0")/recipe.sh"

for teacher in scan pos_scan; do
    matching_model $teacher
    for readout in normalised similarity; do
        dump $teacher $teacher.$readout.valid.given valid --score-reference --readout $readout
    done
done
pretrained up_down none
pretrained up_down_annotation annotation
pretrained up_down_pos_scan pos_scan
for name in up_down up_down_annotation up_down_pos_scan; do given $name valid; done
# shellcheck disable=SC2046
table table1 valid given $(runs_of table1)

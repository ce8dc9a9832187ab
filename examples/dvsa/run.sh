#!/usr/bin/env bash
# DVSA from a prepared folder to its table: alignment, phrases, region snippets, captions of images and of regions.
#
#   examples/dvsa/run.sh DATA [OUT]       DATA: the prepared folder; OUT: default runs/dvsa
#   examples/dvsa/run.sh --smoke [OUT]    the same path, in minutes: drawn pictures, tiny models, short training
#
# BETAS="0,0.5,1" names the betas of the sweep, BETA the one that snippets are cut with (default: 1).
# PHOTOGRAPHS=DIR: also draw the described regions of DRAWN="ID,ID" (default: the first three test images).
# Skips what is finished; an interrupted training resumes at its last epoch.
# shellcheck shell=bash disable=SC2034,SC2154
set -euo pipefail
called_from=$PWD
cd "$(dirname "$0")/../.."
# shellcheck source=examples/runs.sh
. examples/runs.sh

data_and_out runs/dvsa-smoke runs/dvsa "$@"
betas=${BETAS:-0,0.25,0.5,1,2,4}
beta=${BETA:-1}

# The paper: batches of 100, clipping by value at 5, margin 1, all negatives; rates chosen on validation and not given,
# SGD for the alignment and RMSprop for the captioner, for which Adam stands in here.
every=(--clip-value 5 --lr-scheduler fixed)
matching=(--arch dvsa --criterion image_text_triplet --negatives all --margin 1 --batch-size 100 --lr 5e-4
    --max-epoch 10 --eval-retrieval --best-checkpoint-metric rsum)
captioner=(--arch multimodal_rnn --criterion cross_entropy --batch-size 100 --lr 1e-3 --max-epoch 10
    --eval-caption-metrics --best-checkpoint-metric cider)
beam=7
if [ -n "$smoke" ]; then
    # shellcheck source=examples/flickr30k_entities/smoke.sh
    . examples/flickr30k_entities/smoke.sh
    matching+=(--hidden-size 16)
    captioner+=(--embedding-size 16 --hidden-size 16 --max-epoch 1)
    beam=2
fi
whole=$data

# ---- which words belong to which region ----

train dvsa "${matching[@]}"
[ -f "$out/retrieval.json" ] || quietly "$out/evaluate.log" fairseq-grounding evaluate retrieval "$whole" \
    --path "$out/dvsa/checkpoint_best.pt" --json "$out/retrieval.json"
if [ ! -f "$out/phrases.jsonl" ]; then
    log "phrases: beta $betas"
    quietly "$out/align.log" fairseq-grounding align "$whole" --path "$out/dvsa/checkpoint_best.pt" --split test \
        --beta "$betas" --out "$out/phrases.jsonl"
fi
[ -f "$out/phrase.json" ] || [ ! -f "$whole/objects.json" ] || quietly "$out/evaluate.log" fairseq-grounding evaluate \
    grounding "$out/phrases.jsonl" --data "$whole" --protocol phrase --json "$out/phrase.json"
if [ ! -d "$out/snippets" ]; then
    log "snippets: beta $beta"
    quietly "$out/align.log" fairseq-grounding align "$whole" --path "$out/dvsa/checkpoint_best.pt" \
        --split train,valid,test --beta "$beta" --export-snippets "$out/snippets"
fi

# ---- captions of images and of regions ----

written=(--items image --max-len-b 20)
train image_rnn "${captioner[@]}"
dump image_rnn image_rnn_beam1 test "${written[@]}" --beam 1
dump image_rnn image_rnn test "${written[@]}" --beam "$beam"
data=$out/snippets
train region_rnn "${captioner[@]}" --image-vector region --image-context concat
dump region_rnn region_rnn test "${written[@]}" --beam "$beam"
# a snippet's first region is the region itself: alone, it is an image to the captioner of whole images
dump image_rnn image_rnn_on_regions test "${written[@]}" --beam "$beam" --max-regions 1
[ -f "$out/captions.json" ] || quietly "$out/evaluate.log" fairseq-grounding evaluate captions \
    "$out/image_rnn_beam1.jsonl" "$out/image_rnn.jsonl" --data "$whole" --json "$out/captions.json"
[ -f "$out/snippets.json" ] || quietly "$out/evaluate.log" fairseq-grounding evaluate captions \
    "$out/region_rnn.jsonl" "$out/image_rnn_on_regions.jsonl" --data "$out/snippets" --json "$out/snippets.json"

if [ ! -f "$out/described.jsonl" ]; then
    log "describing the regions of the test images"
    quietly "$out/describe.log" fairseq-grounding describe-regions "$whole" --path "$out/region_rnn/checkpoint_best.pt" \
        --beam "$beam" --out "$out/described.jsonl"
fi
[ -z "$smoke" ] || photographs=$out/pictures/images
[ -z "${PHOTOGRAPHS:-}" ] || photographs=$(given_path "$PHOTOGRAPHS")
photographs=${photographs:-}
if [ -n "$photographs" ] && [ ! -d "$out/drawn" ]; then
    drawn=${DRAWN:-$(cut -f 2 "$whole/test.captions.tsv" | uniq | head -n 3 | paste -s -d ,)}
    quietly "$out/describe.log" fairseq-grounding describe-regions "$whole" --path "$out/region_rnn/checkpoint_best.pt" \
        --beam "$beam" --images "$drawn" --out "$out/drawn.jsonl" --draw "$out/drawn" --photographs "$photographs"
fi
python examples/dvsa/table.py "$out" | tee "$out/table.md"

#!/usr/bin/env bash
# Trains and scores matching models and captioners on the Flickr8k pack; skips what is finished.
#
#   examples/flickr8k/run.sh PACK [OUT] [RUN ...]
#
# PACK  folder with dataset.json, regions.h5 and entities/ (see README.md beside this file)
# OUT   where everything goes (default: runs/flickr8k)
# RUN   which runs (default: all of the list below); a run may need others first, and then says which
#
# An interrupted run resumes at its last epoch. Two calls with other RUNs can work side by side (then with
# OMP_NUM_THREADS=1 each). The tables at the end mark what was not run.
set -euo pipefail
called_from=$PWD
cd "$(dirname "$0")/../.."
. examples/runs.sh
pack=$(given_path "${1:?"the folder of the pack is missing: examples/flickr8k/run.sh PACK [OUT] [RUN ...]"}")
out=runs/flickr8k
[ $# -lt 2 ] || out=$(given_path "$2")
shift $(($# < 2 ? $# : 2))
data=$out/data
every=()
mkdir -p "$out"

# _none: --norm none; _box5: --region-geometry box5; scan_cold: hardest negatives from the first update, two epochs
matching_runs="scan pos_scan scan_none pos_scan_none scan_box5 pos_scan_box5 scan_none_box5 pos_scan_none_box5
    scan_cold"
# up_down by cross-entropy; up_down_TEACHER distilled from that matching model, _similarity by the other read-out
best=pos_scan_none_box5
captioner_runs="up_down.seed1 up_down.seed2 up_down_scan.seed1 up_down_scan.seed2 up_down_pos_scan.seed1
    up_down_pos_scan.seed2 up_down_pos_scan_similarity.seed1 up_down_$best.seed1 up_down_$best.seed2"
# Table 2 of the paper: each supervision, each reward (cider, or a matching model's score beside it)
finetuned_runs=$(for supervision in up_down up_down_scan up_down_pos_scan; do
    for reward in cider scan pos_scan; do echo "${supervision}_sc_$reward.seed1"; done
done)
wanted=${*:-$matching_runs $captioner_runs $finetuned_runs}

matching=(--word-embedding-size 300 --joint-size 256 --criterion image_text_triplet --margin 0.2 --temperature 9
    --hardest-from-epoch 2 --batch-size 64 --lr 5e-4,5e-4,5e-4,5e-4,5e-5,5e-5 --lr-scheduler fixed --max-epoch 6
    --clip-norm 2 --eval-retrieval --best-checkpoint-metric rsum)
captioner=(--arch up_down --embedding-size 256 --hidden-size 256 --attention-size 256 --items group --batch-size 29
    --max-target-positions 17 --lr-scheduler fixed --clip-norm 5 --eval-caption-metrics --best-checkpoint-metric cider)
pretraining=(--lr 5e-4,5e-4,5e-4,4e-4,4e-4 --max-epoch 5)
# 69 updates of 29 images: 2,000 images once
# without dropout, so that what is trained is the policy that captions are drawn from
finetuning=(--criterion scst_cider_scan --dropout 0 --lr 5e-5 --max-epoch 1 --max-update 69)

if [ ! -f "$out/regions.h5" ]; then
    log "regions: rewriting the store uncompressed, since compressed blocks make random reads slow"
    fairseq-grounding prepare-regions --format hdf5 --input "$pack/regions.h5" --out "$out/regions.h5"
fi
if [ ! -d "$data" ]; then
    log "captions: tagging nouns, tying entity boxes to words"
    fairseq-grounding prepare-captions --captions "$pack/dataset.json" --regions "$out/regions.h5" \
        --entities "$pack/entities" --threshold 5 --out "$data"
fi

needs() { # RUN NEEDED
    [ -f "$out/$2/done" ] || { log "$1: $2 comes first" && exit 1; }
}
distilled_from() { # NAME SEED TEACHER READOUT
    needs "$1.seed$2" "$3"
    train "$1.seed$2" "${captioner[@]}" "${pretraining[@]}" --criterion kl_attention_distill --seed "$2" \
        --teacher-path "$out/$3/checkpoint_best.pt" --teacher-readout "$4" --attention-weight 0.1
}

for run in $wanted; do
    name=${run%.seed*} seed=${run#*.seed}
    case $run in
    *_sc_*.seed*)
        from=${name%_sc_*} reward=${name##*_sc_} flags=(--scan-weight 0)
        needs "$run" "$from.seed$seed"
        if [ "$reward" != cider ]; then
            needs "$run" "$reward"
            flags=(--scan-weight 1 --reward-path "$out/$reward/checkpoint_best.pt")
        fi
        train "$run" "${captioner[@]}" "${finetuning[@]}" "${flags[@]}" --seed "$seed" \
            --finetune-from-model "$out/$from.seed$seed/checkpoint_best.pt"
        ;;
    up_down.seed*) train "$run" "${captioner[@]}" "${pretraining[@]}" --criterion cross_entropy --seed "$seed" ;;
    up_down_*_similarity.seed*)
        teacher=${name#up_down_}
        distilled_from "$name" "$seed" "${teacher%_similarity}" similarity
        ;;
    up_down_*.seed*) distilled_from "$name" "$seed" "${name#up_down_}" normalised ;;
    scan* | pos_scan*)
        flags=(--arch scan)
        case $run in pos_*) flags=(--arch pos_scan) ;; esac
        case $run in *_none*) flags+=(--norm none) ;; esac
        case $run in *_cold) flags+=(--hardest-from-epoch 1 --max-epoch 2) ;; esac
        case $run in *_box5) flags+=(--region-geometry box5) ;; esac
        train "$run" "${matching[@]}" "${flags[@]}"
        dump "$run" "$run.normalised" test --score-reference --readout normalised
        dump "$run" "$run.similarity" test --score-reference --readout similarity
        continue
        ;;
    *) log "no such run: $run" && exit 1 ;;
    esac
    dump "$run" "$run.given" test --score-reference
    dump "$run" "$run.written" test --items image --beam 1 --max-len-b 20
done

# what is there of all runs, whichever this call was for
given=() written=()
for run in $matching_runs; do
    for readout in normalised similarity; do given+=("$run.$readout"); done
done
for run in $captioner_runs $finetuned_runs; do given+=("$run.given") written+=("$run.written"); done
mapfile -t given < <(done_of "${given[@]}")
mapfile -t written < <(done_of "${written[@]}")
reports=()
if [ ${#given[@]} -gt 0 ]; then
    fairseq-grounding evaluate grounding "${given[@]}" --data "$data" --protocol phrase --regions "$out/regions.h5" \
        --json "$out/phrase.json"
    reports+=("$out/phrase.json")
fi
if [ ${#written[@]} -gt 0 ]; then
    fairseq-grounding evaluate grounding "${written[@]}" --data "$data" --protocol gvd --json "$out/gvd.json"
    fairseq-grounding evaluate captions "${written[@]}" --data "$data" --json "$out/captions.json"
    reports+=("$out/gvd.json" "$out/captions.json")
fi
python examples/table.py "${reports[@]}" --paper examples/flickr8k/runs.json --table grid --out "$out/table.md" \
    --csv "$out/table.csv"

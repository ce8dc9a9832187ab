#!/usr/bin/env bash
# Trains and scores matching models and captioners on the Flickr8k pack; skips what is finished.
#
#   examples/flickr8k/run.sh PACK [OUT] [RUN ...]
#
# PACK  folder with dataset.json, regions.h5 and entities/ (see README.md beside this file)
# OUT   where everything goes (default: runs/flickr8k)
# RUN   which of scan, pos_scan, up_down, up_down_scan, up_down_pos_scan (default: all)
#
# An interrupted run resumes at its last epoch. Two calls with other RUNs can work side by side
# (then with OMP_NUM_THREADS=1 each).
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=${1:?"the folder of the pack is missing: examples/flickr8k/run.sh PACK [OUT] [RUN ...]"}
out=${2:-runs/flickr8k}
shift $(($# < 2 ? $# : 2))
wanted=${*:-scan pos_scan up_down up_down_scan up_down_pos_scan}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=PASSIVE
mkdir -p "$out"

plugin=(--user-dir fairseq_grounding --task grounded_caption)
matching=(--word-embedding-size 300 --joint-size 256 --criterion image_text_triplet --margin 0.2 --temperature 9
    --hardest-from-epoch 2 --batch-size 64 --lr 5e-4,5e-4,5e-4,5e-4,5e-5,5e-5 --max-epoch 6 --clip-norm 2
    --eval-retrieval --best-checkpoint-metric rsum)
captioner=(--arch up_down --embedding-size 256 --hidden-size 256 --attention-size 256 --items group --batch-size 29
    --max-target-positions 17 --lr 5e-4,5e-4,5e-4,4e-4,4e-4 --max-epoch 5 --clip-norm 5
    --eval-caption-metrics --best-checkpoint-metric cider)

log() { echo "$(date +%H:%M:%S) $*" >&2; }

if [ ! -f "$out/regions.h5" ]; then
    log "regions: rewriting the store uncompressed, since compressed blocks make random reads slow"
    fairseq-grounding prepare-regions --format hdf5 --input "$pack/regions.h5" --out "$out/regions.h5"
fi
if [ ! -d "$out/data" ]; then
    log "captions: tagging nouns, tying entity boxes to words"
    fairseq-grounding prepare-captions --captions "$pack/dataset.json" --regions "$out/regions.h5" \
        --entities "$pack/entities" --threshold 5 --out "$out/data"
fi

train() { # NAME FLAGS...
    local name=$1
    shift
    [ -f "$out/$name/done" ] && return
    log "$name: training (log in $out/$name.log)"
    local start=$SECONDS
    fairseq-train "$out/data" "${plugin[@]}" "$@" --optimizer adam --lr-scheduler fixed --seed 1 \
        --maximize-best-checkpoint-metric --no-epoch-checkpoints --save-dir "$out/$name" \
        --no-progress-bar --log-interval 100 >>"$out/$name.log" 2>&1 ||
        { log "$name: failed; the end of $out/$name.log:" && tail -n 3 "$out/$name.log" >&2 && exit 1; }
    echo "$((SECONDS - start)) seconds with $OMP_NUM_THREADS threads" >"$out/$name/done"
}

dump() { # NAME DUMP FLAGS...
    local name=$1 file="$out/$2.jsonl"
    shift 2
    [ -f "$file" ] && return
    log "$name: writing $file"
    fairseq-generate "$out/data" "${plugin[@]}" --path "$out/$name/checkpoint_best.pt" --gen-subset test \
        --batch-size 50 --quiet --no-progress-bar --grounding-dump "$file" "$@" >"$out/generate.$$.log" 2>&1 ||
        { tail -n 3 "$out/generate.$$.log" >&2 && exit 1; }
    rm "$out/generate.$$.log"
}

for name in $wanted; do
    case $name in
    scan | pos_scan)
        train $name --arch $name "${matching[@]}"
        dump $name $name.normalised --score-reference --readout normalised
        dump $name $name.similarity --score-reference --readout similarity
        continue
        ;;
    up_down) train $name --criterion cross_entropy "${captioner[@]}" ;;
    up_down_scan | up_down_pos_scan)
        teacher=$out/${name#up_down_}/checkpoint_best.pt
        [ -f "$out/${name#up_down_}/done" ] || { log "$name: ${name#up_down_} comes first" && exit 1; }
        train $name --criterion kl_attention_distill --teacher-path "$teacher" --attention-weight 0.1 "${captioner[@]}"
        ;;
    *) log "no such run: $name" && exit 1 ;;
    esac
    dump $name $name.given --score-reference
    dump $name $name.written --items image --beam 1 --max-len-b 20
done

scored() { for dump in "$@"; do [ -f "$out/$dump.jsonl" ] && echo "$out/$dump.jsonl"; done || true; }
given=$(scored scan.normalised scan.similarity pos_scan.normalised pos_scan.similarity \
    up_down.given up_down_scan.given up_down_pos_scan.given)
written=$(scored up_down.written up_down_scan.written up_down_pos_scan.written)
[ -z "$given" ] || fairseq-grounding evaluate grounding $given --data "$out/data" --protocol phrase \
    --regions "$out/regions.h5" --json "$out/phrase.json"
[ -z "$written" ] || fairseq-grounding evaluate grounding $written --data "$out/data" --protocol gvd --json "$out/gvd.json"
[ -z "$written" ] || fairseq-grounding evaluate captions $written --data "$out/data" --json "$out/captions.json"

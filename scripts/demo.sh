#!/usr/bin/env bash
# Makes an environment, draws a data set, trains two matching models and three captioners on it, and shows how well
# each knows which region a word came from. No download beyond Python packages.
#
#   scripts/demo.sh [OUT]      OUT: where everything goes (default: demo-out)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
out=${1:-demo-out}
if [ -e "$out" ]; then
    echo "error: $out exists; remove it or name another folder" >&2
    exit 1
fi
mkdir -p "$out"
# two jobs run side by side
export OMP_NUM_THREADS=1
started=$SECONDS
log() { echo "[$((SECONDS - started)) s] $*" >&2; }

# run LOGFILE COMMAND...: the command's output goes to the file; shown where it fails
run() {
    local file=$out/$1.log
    shift
    "$@" >"$file" 2>&1 || { tail -n 20 "$file" >&2 && echo "error: failed: see $file" >&2 && return 1; }
}
both() { # wait for two background jobs, and fail with either
    local job status=0
    for job in "$@"; do wait "$job" || status=1; done
    return $status
}

plugin=(--user-dir fairseq_grounding --task grounded_caption --no-progress-bar)
train() { # NAME FLAGS...
    local name=$1
    shift
    run "$name" fairseq-train "$out/data" "${plugin[@]}" --optimizer adam --lr-scheduler fixed --seed 1 \
        --no-epoch-checkpoints --save-dir "$out/$name" --maximize-best-checkpoint-metric "$@"
}
# without the similarity norm over words, and with all negatives: on so small a data set the published recipe stays
# near the loss of a model that has learned nothing
matching() { # NAME FLAGS...
    train "$@" --word-embedding-size 64 --joint-size 128 --criterion image_text_triplet --negatives all \
        --norm none --temperature 20 --batch-size 64 --lr 1e-3,1e-3,1e-3,1e-3,1e-3,1e-4 --clip-norm 2 \
        --eval-retrieval --best-checkpoint-metric rsum
}
captioner() { # NAME FLAGS...
    train "$@" --arch up_down --embedding-size 128 --hidden-size 128 --attention-size 128 --items group \
        --batch-size 20 --dropout 0.1 --lr 6e-3,6e-3,6e-3,6e-3,6e-3,3e-3,3e-3,1e-3,1e-3,1e-3 --max-epoch 10 --clip-norm 1 \
        --eval-caption-metrics --best-checkpoint-metric cider
}
dump() { # MODEL NAME FLAGS...
    local model=$1 name=$2
    shift 2
    run "dump.$name" fairseq-generate "$out/data" "${plugin[@]}" --path "$out/$model/checkpoint_best.pt" \
        --gen-subset test --batch-size 50 --quiet --grounding-dump "$out/$name.jsonl" "$@"
}
read_and_write() { # MODEL
    dump "$1" "$1.given" --score-reference
    dump "$1" "$1.written" --items image --beam 1 --max-len-b 20
}

log "drawing 1,500 pictures with captions and boxes"
run pictures python examples/demo/pictures.py --out "$out/pictures" --images 1500 --seed 1
log "cutting out region candidates and describing their pixels"
run regions python examples/demo/extract_regions.py --images "$out/pictures/images" \
    --annotations "$out/pictures/entities/Annotations" --out "$out/npz" --seed 1
fairseq-grounding prepare-regions --format npz-dir --input "$out/npz" --out "$out/regions.h5"
fairseq-grounding prepare-captions --captions "$out/pictures/dataset.json" --regions "$out/regions.h5" \
    --entities "$out/pictures/entities" --out "$out/data"

log "training the matching models scan and pos_scan (logs in $out/)"
matching scan --arch scan --max-epoch 6 & scan=$!
matching pos_scan --arch pos_scan --max-epoch 6 & pos_scan=$!
both $scan $pos_scan
# a teacher that knows nothing: the same model after one update too small to change it
matching random --arch pos_scan --max-update 1 --lr 1e-9

log "training the captioner up_down: with cross-entropy, with pos_scan as its teacher, with a random teacher"
captioner up_down --criterion cross_entropy & one=$!
captioner distilled --criterion kl_attention_distill --teacher-path "$out/pos_scan/checkpoint_best.pt" \
    --teacher-readout similarity --attention-weight 0.2 & two=$!
both $one $two
captioner random_teacher --criterion kl_attention_distill --teacher-path "$out/random/checkpoint_best.pt" \
    --teacher-readout similarity --attention-weight 0.2 & one=$!
(
    dump scan scan.given --score-reference --readout similarity
    dump pos_scan pos_scan.given --score-reference --readout similarity
    dump random random.given --score-reference --readout similarity
    read_and_write up_down
) & two=$!
both $one $two
read_and_write distilled & one=$!
read_and_write random_teacher & two=$!
both $one $two

log "scoring"
given=() written=()
for name in scan pos_scan random up_down distilled random_teacher; do given+=("$out/$name.given.jsonl"); done
for name in up_down distilled random_teacher; do written+=("$out/$name.written.jsonl"); done
run phrase fairseq-grounding evaluate grounding "${given[@]}" --data "$out/data" --protocol phrase \
    --regions "$out/regions.h5" --json "$out/phrase.json"
run gvd fairseq-grounding evaluate grounding "${written[@]}" --data "$out/data" --protocol gvd --json "$out/gvd.json"
run captions fairseq-grounding evaluate captions "${written[@]}" --data "$out/data" --json "$out/captions.json"
fairseq-grounding draw "$out"/{up_down,distilled}.written.jsonl --images "$out/pictures/images" --data "$out/data" \
    --out "$out/drawn"

echo
python examples/table.py "$out/phrase.json" "$out/gvd.json" "$out/captions.json" | tee "$out/table.md"
echo
log "done: the table is in $out/table.md, pictures with the attended boxes are in $out/drawn"

# Sourced by the table and figure scripts of this folder and of examples/coco: the paper's runs by name.
#
#   SCRIPT DATA [OUT]       DATA: the prepared folder (README.md says how to come by it); OUT: default runs/flickr30k
#   SCRIPT --smoke [OUT]    the same path, in minutes: drawn pictures, tiny models, one short epoch each
#
# All scripts share OUT: a run that one of them finished is not run again by another.
# SEEDS="1 2 3" trains every captioner with each of these seeds (default: 1).
# shellcheck shell=bash disable=SC2034,SC2154
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
called_from=$PWD
cd "$here/.."
# shellcheck source=examples/runs.sh
. "$here/runs.sh"

data_and_out runs/smoke runs/flickr30k "$@"
seeds=${SEEDS:-1}

# what every run of a kind has; on top of it the smoke run's sizes
every=()
matching=(--criterion image_text_triplet --batch-size 128 --lr 2e-4 --lr-scheduler epoch_step --step-epochs 15
    --step-factor 0.1 --max-epoch 30 --clip-norm 2 --eval-retrieval --best-checkpoint-metric rsum)
captioner=(--items group --batch-size 29 --max-target-positions 17 --eval-caption-metrics --best-checkpoint-metric cider)
pretraining=(--lr 5e-4 --lr-scheduler epoch_step --step-epochs 3 --step-factor 0.8 --clip-value 0.1 --max-epoch 30
    --scheduled-sampling-increase 0.05 --scheduled-sampling-every 5 --scheduled-sampling-max 0.25)
# without dropout, so that what is trained is the policy that captions are drawn from
finetuning=(--criterion scst_cider_scan --dropout 0 --lr 5e-5 --lr-scheduler fixed --clip-value 0.1 --max-epoch 80)
arch=up_down
small_captioner=()

if [ -n "$smoke" ]; then
    . "$here/flickr30k_entities/smoke.sh"
fi

# matching_model scan|pos_scan
matching_model() {
    train "$1" --arch "$1" "${matching[@]}"
}

# pretrained NAME none|annotation|TEACHER [WEIGHT]: a captioner by cross-entropy, its attention supervised or not
pretrained() {
    local name=$1 supervision=$2 weight=${3:-0.1} seed flags
    case $supervision in
    none) flags=(--criterion cross_entropy) ;;
    annotation)
        flags=(--criterion kl_attention_distill --attention-target annotation --attention-boxes best
            --attention-loss nll --attention-weight "$weight")
        ;;
    *)
        matching_model "$supervision"
        cached "$supervision"
        flags=(--criterion kl_attention_distill --teacher-attention "$out/$supervision.attention.h5"
            --attention-weight "$weight")
        ;;
    esac
    for seed in $seeds; do
        train "$name.seed$seed" --arch "$arch" "${captioner[@]}" "${pretraining[@]}" "${flags[@]}" \
            "${small_captioner[@]}" --seed "$seed"
    done
}

# cached TEACHER: its attention on all captions, once for all captioners that it teaches
cached() {
    [ ! -f "$out/$1.attention.h5" ] || return 0
    log "$1: writing its attention to $out/$1.attention.h5"
    quietly "$out/$1.attention.log" fairseq-grounding cache-teacher "$data" --split train,valid \
        --max-target-positions 17 --teacher-path "$out/$1/checkpoint_best.pt" --out "$out/$1.attention.h5"
}

# finetuned NAME FROM REWARD: self-critical training of FROM; REWARD is cider, or a matching model beside it
finetuned() {
    local name=$1 from=$2 reward=$3 seed flags=(--scan-weight 0)
    if [ "$reward" != cider ]; then
        matching_model "$reward"
        flags=(--scan-weight 1 --reward-path "$out/$reward/checkpoint_best.pt")
    fi
    for seed in $seeds; do
        train "$name.seed$seed" --arch "$arch" "${captioner[@]}" "${finetuning[@]}" "${flags[@]}" \
            "${small_captioner[@]}" --finetune-from-model "$out/$from.seed$seed/checkpoint_last.pt" --seed "$seed"
    done
}

# captioner_name SUPERVISION: what a captioner with this supervision is called
captioner_name() {
    [ "$1" = none ] && echo up_down || echo "up_down_$1"
}

# given NAME SPLIT: what each seed of the captioner NAME looks at while it reads the given captions
given() {
    local seed
    for seed in $seeds; do dump "$1.seed$seed" "$1.seed$seed.$2.given" "$2" --score-reference; done
}

# written NAME SPLIT: the captions that each seed of NAME writes
written() {
    local seed
    for seed in $seeds; do
        dump "$1.seed$seed" "$1.seed$seed.$2.written" "$2" --items image --beam "${beam:-1}" --max-len-b 20
    done
}

# table NAME SPLIT given|written RUN...: scores the dumps of these runs that are there, and writes OUT/NAME.md and .csv
table() {
    local name=$1 split=$2 kind=$3 run dumps=() reports=()
    shift 3
    for run in "$@"; do
        if [ -f "$out/$run.$split.$kind.jsonl" ]; then dumps+=("$out/$run.$split.$kind.jsonl"); fi
        for seed in $seeds; do
            if [ -f "$out/$run.seed$seed.$split.$kind.jsonl" ]; then
                dumps+=("$out/$run.seed$seed.$split.$kind.jsonl")
            fi
        done
    done
    if [ ${#dumps[@]} -gt 0 ]; then
        log "$name: scoring ${#dumps[@]} dumps"
        if [ "${grounded:-1}" = 1 ]; then
            quietly "$out/$name.log" fairseq-grounding evaluate grounding "${dumps[@]}" --data "$data" --protocol gvd \
                --bootstrap 0 --json "$out/$name.grounding.json"
            reports+=("$out/$name.grounding.json")
        fi
        if [ "$kind" = written ]; then
            quietly "$out/$name.log" fairseq-grounding evaluate captions "${dumps[@]}" --data "$data" --split "$split" \
                --json "$out/$name.captions.json"
            reports+=("$out/$name.captions.json")
        fi
    fi
    python examples/table.py "${reports[@]}" --paper examples/flickr30k_entities/paper.json --table "$name" \
        --out "$out/$name.md" --csv "$out/$name.csv"
}

# runs_of TABLE: the runs that have a row in it
runs_of() {
    python examples/table.py --paper examples/flickr30k_entities/paper.json --table "$1" --list
}

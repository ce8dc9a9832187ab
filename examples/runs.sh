# Sourced by the example scripts: training, dumping and scoring that skip what is finished.
#
# Wants $out (where everything goes), $data (the prepared folder) and, for every training, the flags in $every.
# An interrupted training resumes at its last epoch; what is half-written is written anew.
# shellcheck shell=bash disable=SC2154
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=PASSIVE
plugin=(--user-dir fairseq_grounding --task grounded_caption --no-progress-bar)

# given_path PATH: what the user calls so in $called_from, where the script has gone to another folder
given_path() { case $1 in /*) echo "$1" ;; *) echo "$called_from/$1" ;; esac; }

# data_and_out SMALL FULL ARGUMENT...: sets smoke, data and out from a script's "DATA [OUT]" or "--smoke [OUT]"; SMALL and
# FULL are where things go by default
data_and_out() {
    local small=$1 full=$2
    shift 2
    if [ $# -lt 1 ] || [ $# -gt 2 ] || { [[ $1 = -* ]] && [ "$1" != --smoke ]; }; then
        echo "usage: $0 DATA [OUT]      or: $0 --smoke [OUT]" >&2
        exit 2
    fi
    if [ "$1" = --smoke ]; then
        smoke=1 out=$small
    else
        smoke='' data=$(given_path "$1") out=$full
    fi
    [ $# -lt 2 ] || out=$(given_path "$2")
    mkdir -p "$out"
}

log() { echo "$(date +%H:%M:%S) $*" >&2; }

# quietly FILE COMMAND...: the command's output goes to FILE; its end is shown where the command fails
quietly() {
    local file=$1
    shift
    "$@" >>"$file" 2>&1 || { log "failed: $1; the end of $file:" && tail -n 5 "$file" >&2 && exit 1; }
}

# train NAME FLAGS...: into $out/NAME
train() {
    local name=$1
    shift
    [ ! -f "$out/$name/done" ] || return 0
    log "$name: training (log in $out/$name.log)"
    local start=$SECONDS
    quietly "$out/$name.log" fairseq-train "$data" "${plugin[@]}" --optimizer adam --seed 1 --log-interval 100 \
        --maximize-best-checkpoint-metric --no-epoch-checkpoints --save-dir "$out/$name" "${every[@]}" "$@"
    echo "$((SECONDS - start)) seconds with $OMP_NUM_THREADS threads" >"$out/$name/done"
}

# dump NAME DUMP SPLIT FLAGS...: what the best checkpoint of NAME reads or writes, into $out/DUMP.jsonl
dump() {
    local name=$1 file=$out/$2.jsonl split=$3
    shift 3
    [ ! -f "$file" ] || return 0
    log "$name: writing $file"
    quietly "$out/generate.$$.log" fairseq-generate "$data" "${plugin[@]}" --path "$out/$name/checkpoint_best.pt" \
        --gen-subset "$split" --batch-size 50 --quiet --grounding-dump "$file" "$@"
    rm "$out/generate.$$.log"
}

# done_of DUMP...: the files of those dumps that exist
done_of() {
    local dump
    for dump in "$@"; do [ ! -f "$out/$dump.jsonl" ] || echo "$out/$dump.jsonl"; done
}

# Sourced by recipe.sh for --smoke: draws a small data set, and makes every model and run small.
# Its tables show that the path works; their figures mean nothing.
# shellcheck shell=bash disable=SC2034,SC2154
data=$out/data
export OMP_NUM_THREADS=1
if [ ! -d "$data" ]; then
    log "smoke: drawing pictures"
    rm -rf "$out/pictures" "$out/npz"
    quietly "$out/data.log" python examples/demo/pictures.py --out "$out/pictures" --images 60 --seed 1
    quietly "$out/data.log" python examples/demo/extract_regions.py --images "$out/pictures/images" \
        --annotations "$out/pictures/entities/Annotations" --out "$out/npz" --seed 1
    [ -f "$out/regions.h5" ] || quietly "$out/data.log" fairseq-grounding prepare-regions --format npz-dir \
        --input "$out/npz" --out "$out/regions.h5"
    quietly "$out/data.log" fairseq-grounding prepare-captions --captions "$out/pictures/dataset.json" \
        --regions "$out/regions.h5" --entities "$out/pictures/entities" --out "$data"
fi
matching+=(--word-embedding-size 16 --joint-size 16 --batch-size 32 --max-epoch 1)
small_captioner=(--embedding-size 16 --hidden-size 16 --attention-size 16 --batch-size 8 --max-epoch 1)

# Sourced by the other scripts: makes .venv in the checkout with all that they need, once, and activates it.
#
# PYTHON   which Python 3.11 or 3.12 to use (default: the first found of python3.11, python3.12, python3)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

find_python() {
    local python
    for python in ${PYTHON:-python3.11 python3.12 python3}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    echo "error: Python 3.11 or 3.12 is needed (fairseq's wheel is for these); set PYTHON to one" >&2
    return 1
}

# what was installed from which setup.py, so that a changed one is installed anew
stamp=$venv/installed-$(cksum <"$root/setup.py" | tr -d ' ')
if [ ! -f "$stamp" ]; then
    python=$(find_python)
    echo "making the environment $venv (a few minutes, once)" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv"
    # this release of torch first, and alone: anything later would otherwise bring a CUDA build of gigabytes
    "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
    "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$root[fairseq,text,metrics,test]"
    touch "$stamp"
fi
# shellcheck disable=SC1091
. "$venv/bin/activate"
export OMP_WAIT_POLICY=PASSIVE

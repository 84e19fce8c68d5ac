#!/bin/bash
# One H200 in three parts of under ten minutes each, most wanted first:
#
#   kernels/h200_session.sh OUT 1     training steps: eager, options, compiled
#   kernels/h200_session.sh OUT 2     single ranks of larger layouts, GEMM
#   kernels/h200_session.sh OUT 3     attention, memory-bound, launch, copies, grouped GEMM, and
#                                     transformers' Trainer where it is installed
#
# Without a number: all three. A program that overruns its minutes is interrupted, which keeps what
# it has; the next one starts in any case. QUICK=1: a try of under two minutes, on a CPU too.
set -u
out=${1:?folder to write to} parts=${2:-"1 2 3"}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor}

measure() { # document, minutes, program and options
    local name=$1 minutes=$2 program=$3 quick=()
    shift 3
    if [ -n "${QUICK:-}" ]; then minutes=0.2 quick=(--quick); fi
    local most=$(python3 -c "print(int(60 * $minutes + 45))")
    timeout --signal=INT --kill-after=30 "$most" python3 "$here/$program.py" "${quick[@]}" \
        --minutes "$minutes" --out "$out/$name.json" "$@" 2>&1 | tee -a "$out/log.txt"
}

for part in $parts; do
    case $part in
    1) measure train_step 8.5 train_step --sections eager,options,compiled ;;
    2)
        measure train_ranks 5 train_step --sections ranks
        measure gemm 3 gemm ;;
    3)
        measure attention 1.5 attention
        measure memory_bound 1 memory_bound
        measure launch 0.5 launch
        measure copies 0.5 copies
        measure grouped_gemm 1 grouped_gemm
        measure hf_trainer 2.5 hf_trainer ;;
    *) echo "no part $part" >&2 && exit 2 ;;
    esac
done

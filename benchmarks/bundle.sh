#!/usr/bin/env bash
# On a GPU machine, in the root of a checkout with the folder .gpu/ of benchmarks.bundle: test, measure, train a study.
#   bash .gpu/run.sh [all|tests|measure|study] [seconds]
# OUT: folder of the results (gpu-out). WORK: folder of everything else (/tmp/xclrun-gpu). PYTHON: the interpreter.
# WORKERS: runs at a time (4). REHEARSE=1: tiny shapes on a CPU; its numbers are meaningless.
set -uo pipefail
what=${1:-all} limit=${2:-540} began=$SECONDS here=$(dirname "$0") code=0
OUT=${OUT:-gpu-out} WORK=${WORK:-/tmp/xclrun-gpu} PYTHON=${PYTHON:-python3}
mkdir -p "$OUT" "$WORK"
left() { echo $(( limit - (SECONDS - began) )); }
# A part that is still running at its limit is interrupted; it is resumable, and what it has written counts.
within() {
  local log=$1 seconds=$2; shift 2
  timeout -s INT "$(( seconds > 1 ? seconds : 1 ))" "$@" 2>&1 | tee "$OUT/$log.log"
  case ${PIPESTATUS[0]} in 0|124) ;; *) code=1; echo "failed: $*" ;; esac
}

if compgen -G "$here/wheels/*.whl" >/dev/null; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-cache-dir --upgrade --target "$WORK/site" "$here"/wheels/*.whl || exit 1
fi
export PYTHONPATH=$WORK/site:$PWD PYTHONUNBUFFERED=1 XCLRUN_SHARED=$WORK
for archive in mtop16 encoder; do
  [ ! -f "$here/$archive.tar.xz" ] || [ -d "$WORK/$archive" ] || tar -xJf "$here/$archive.tar.xz" -C "$WORK" || exit 1
done
"$PYTHON" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")' || exit 1

# What can reveal errors comes first, so results of an interrupted call are still useful.
case $what in all|tests)
  within tests "$(( $(left) / 4 ))" "$PYTHON" -m pytest -q -p no:cacheprovider tests/gpu
esac
case $what in all|measure)
  within measure "$(( $(left) / 2 ))" "$PYTHON" -m benchmarks.gpu ${REHEARSE:+--cpu} --out "$OUT/gpu.json"
esac
case $what in all|study)
  settings=(dataset=mini "order=h2l,l2h")
  [ ! -d "$WORK/mtop16" ] || settings=(dataset=mtop dataset.name=mtop16 "dataset.root=$WORK/mtop16" dataset.replay.memory=3640
    dataset.replay.every_k=25 order=order1,order2,order3,order4,order5,order6)
  settings+=(model=e5_small "model.path=$WORK/encoder" model.trim_vocabulary=false model.max_length=64 trainer.batch_size=32 trainer.lr=2e-4)
  if [ -n "${REHEARSE:-}" ]; then
    settings+=(dataset.max_train=40 dataset.max_eval=20 dataset.replay.every_k=1 model.layers=1 trainer.epochs=1 runtime.device=cpu)
  else
    settings+=(trainer=gpu evaluate=gpu trainer.epochs=3)
  fi
  within study "$(( $(left) - 20 ))" "$PYTHON" -m xclrun strategy=naive,er,lang_spec_trans,lang_spec_ft,inc_joint,multilingual seed=1 \
    "${settings[@]}" tracking=none "paths.outputs=$WORK/study" "hydra.launcher.n=${WORKERS:-4}" -m
  # Reports need no weights.
  tar -cJf "$OUT/runs.tar.xz" -C "$WORK/study" runs
  within report 300 "$PYTHON" -m xclrun report --outputs "$WORK/study" --from-runs
esac
echo "used $(( SECONDS - began )) s"
exit $code

# The other scripts source this file; it is not run. With --help it prints the first comment of the
# script that sources it. It defines `root`, the path of the checkout, and the function `environment`,
# which installs the package into $root/.venv, with the versions of launch/constraints.txt. The
# function makes .venv again if it is incomplete, or if pyproject.toml, the constraints, the Python,
# the accelerator or the path of the checkout has changed.
#
#   PYTHON            the Python to use; unset: the first of python3.13, 3.12, 3.11 and python3
#   HLFORMER_EXTRAS   the accelerator's extra, cuda12 or cuda13, or empty for the CPU; unset: chosen
#                     by the GPU that nvidia-smi finds: cuda13 for drivers from 580 on and GPUs of
#                     compute capability 7.5 or more, otherwise cuda12 for drivers from 525 on. If
#                     unset, a .venv for GPUs is kept on a machine that has none, and one for cuda12
#                     on a machine for cuda13: nodes of a cluster may share the checkout
#
# PYTHONPATH and PYTHONHOME are ignored: install modules of your own into .venv with its pip.

set -euo pipefail

# Only the first argument counts: a command of launch/search.sh has its own --help.
if [[ ${1-} == --help || ${1-} == -h ]]; then
  awk 'NR > 1 { if (!/^# ?/ || /^#SBATCH/) exit; sub(/^# ?/, ""); print }' "$0"
  exit
fi

# Use huge pages for large arrays: without them a training step on a CPU spends a seventh of its time
# on page faults. (Other C libraries ignore the setting.)
export GLIBC_TUNABLES=${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}
# With CDPATH, cd may find another directory, and prints it.
root=$(CDPATH="" cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# PYTHONPATH and PYTHONHOME, which clusters set, would put packages of another Python before those of
# .venv, and pip would not install these.
unset PYTHONPATH PYTHONHOME

say() { printf 'hlformer: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# read_flags OPTION [FLAG …]: set `processes` to the N of the flag OPTION=N (default: 1), and `flags`
# to all other flags.
read_flags() {
  local option=$1 flag
  shift
  processes=1
  flags=()
  for flag in "$@"; do
    case $flag in
      "$option") die "give it as $option=N" ;;
      "$option="*) processes=${flag#"$option="} ;;
      *) flags+=("$flag") ;;
    esac
  done
  [[ $processes =~ ^[1-9][0-9]*$ ]] || die "$option=$processes: give a number of at least 1"
}

# share_gpus OPTION: set `gpus` to the GPUs in CUDA_VISIBLE_DEVICES, or if unset to all GPUs of this
# machine. (-1 hides all GPUs, and so does NoDevFiles, which Slurm sets in jobs without GPUs.) It is an
# error if there are GPUs, but fewer than `processes`: two processes on one GPU would each take most of
# its memory, and a process without a GPU would compute on the CPU.
share_gpus() {
  local listed count i
  gpus=()
  if [[ ${CUDA_VISIBLE_DEVICES-} == -1 || ${CUDA_VISIBLE_DEVICES-} == NoDevFiles ]]; then
    return
  elif [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
  elif listed=$(nvidia-smi -L 2>/dev/null </dev/null); then
    count=$(grep -c '^GPU' <<<"$listed") || true
    for ((i = 0; i < count; i++)); do gpus+=("$i"); done
  fi
  ((${#gpus[@]} == 0 || processes <= ${#gpus[@]})) ||
    die "$1=$processes: each process takes a GPU, and there are ${#gpus[@]}: ${gpus[*]}"
}

# find_python: print the real path of a Python >= 3.11, even if a virtual environment is active.
find_python() {
  local name names=(python3.13 python3.12 python3.11 python3)
  if [[ -n ${PYTHON-} ]]; then names=("$PYTHON"); fi
  for name in "${names[@]}"; do
    "$name" -c 'import os, sys
if sys.version_info < (3, 11): sys.exit(1)
print(os.path.realpath(sys.executable))' 2>/dev/null </dev/null && return
  done
  die "found no Python 3.11 or newer as ${names[*]}; install one, or set PYTHON to its path"
}

# ask_gpus FIELD: print the lowest value of a field of nvidia-smi over all GPUs; nothing if unknown.
ask_gpus() {
  nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null </dev/null | sort -V | head -n 1
}

# find_accelerator: print the accelerator's extra. The drivers and GPUs of each CUDA version are those
# of JAX's installation guide.
find_accelerator() {
  local listed driver major capability
  if [[ -n ${HLFORMER_EXTRAS+set} ]]; then
    printf '%s\n' "$HLFORMER_EXTRAS"
    return
  fi
  command -v nvidia-smi >/dev/null || return 0
  listed=$(nvidia-smi -L 2>/dev/null </dev/null) || true
  if [[ $listed == GPU* ]]; then
    driver=$(ask_gpus driver_version) || driver=""
    capability=$(ask_gpus compute_cap) || capability=""
    major=${driver%%.*} capability=${capability/./} # 7.5 as 75
    if ! [[ $major =~ ^[0-9]+$ ]] || ((major < 525)); then
      say "CUDA 12 needs an NVIDIA driver >= 525, this one is ${driver:-unknown}: using the CPU"
    elif ((major >= 580)) && [[ $capability =~ ^[0-9]+$ ]] && ((capability >= 75)); then
      echo cuda13
    else
      echo cuda12
    fi
  else
    say "nvidia-smi finds no GPU (${listed%%$'\n'*}): using the CPU"
  fi
}

# is_ready KEY EXTRA: succeed if .venv is complete for this key and extra, and works. The extra `test`
# contains `search`.
is_ready() {
  local stamp="" modules=(hlformer_jax jax flax)
  if [[ $2 == test ]]; then modules+=(pytest); fi
  if [[ -n $2 ]]; then modules+=(av fastapi tokenizers); fi
  if [[ -f $root/.venv/.ready ]]; then stamp=$(<"$root/.venv/.ready"); fi
  [[ $stamp == "$1${2:+ $2}" || $stamp == "$1 test" || $stamp == "$1 search" && -z $2 ]] &&
    "$root/.venv/bin/python" -P -c 'import sys
from importlib.util import find_spec
sys.exit(any(find_spec(name) is None for name in sys.argv[1:]))' \
      "${modules[@]}" 2>/dev/null </dev/null
}

# environment_key PYTHON ACCELERATOR: print the key of an environment, which changes with all that it is
# made from.
environment_key() {
  {
    cat "$root/pyproject.toml" "$root/launch/constraints.txt"
    "$1" -c 'import sys; print(sys.version, sys.executable)'
    printf '%s\n' "$2" "$root"
  } | sha256sum | cut -d ' ' -f 1
}

# environment [search | test]: make .venv with this extra, or without an extra; `search` includes `cpu`
# on x86-64 without an accelerator.
environment() {
  local extra=${1-} python accelerator present="" key
  python=$(find_python)
  accelerator=$(find_accelerator)
  if [[ -z ${HLFORMER_EXTRAS+set} && -f $root/.venv/.launch ]]; then present=$(<"$root/.venv/.launch"); fi
  case $accelerator,$present in
    ,cuda12 | ,cuda13)
      accelerator=$present
      export JAX_PLATFORMS=${JAX_PLATFORMS-cpu} # otherwise JAX prints that it finds no CUDA
      ;;
    cuda13,cuda12) accelerator=cuda12 ;;
  esac
  key=$(environment_key "$python" "$accelerator")
  if is_ready "$key" "$extra"; then return; fi
  (
    # If two launches run at once, the second waits, and then finds .venv complete.
    if command -v flock >/dev/null; then
      flock 9 || say "cannot lock $root/.venv.lock: let no other launch install at the same time"
    fi
    is_ready "$key" "$extra" || install "$key" "$extra" "$python" "$accelerator"
  ) 9>"$root/.venv.lock"
}

install() {
  local key=$1 extra=$2 python=$3 accelerator=$4 names version
  version=$("$python" -c 'import platform; print(platform.python_version())')
  if is_ready "$key" ""; then
    rm "$root/.venv/.ready" # only the extra is missing
  else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || die "Python $version cannot make virtual" \
      "environments; on Debian or Ubuntu: apt install python3-venv (or python${version%.*}-venv)"
    [[ ! -e $root/.venv || -e $root/.venv/.launch ]] ||
      die "$root/.venv is not of launch/'s making; move it away"
    say "making $root/.venv with Python $version"
    # .launch is deleted last: if this is stopped, the next launch deletes what is left.
    find "$root/.venv" -mindepth 1 ! -name .launch -delete 2>/dev/null || true
    rm -rf "$root/.venv"
    mkdir "$root/.venv"
    printf '%s\n' "$accelerator" >"$root/.venv/.launch"
    "$python" -m venv "$root/.venv" || die "Python $version could not make $root/.venv, see above"
  fi
  names=$accelerator${accelerator:+${extra:+,}}$extra
  # OpenVINO encodes faster than XLA on a CPU. For ARM it needs a newer C library than JAX does.
  if [[ $names == search && $(uname -m) == x86_64 ]]; then names=search,cpu; fi
  say "installing hlformer_jax${names:+[$names]}: minutes the first time, then not again"
  "$root/.venv/bin/python" -m pip install -qq --no-input --no-user --disable-pip-version-check \
    --constraint "$root/launch/constraints.txt" --editable "$root${names:+[$names]}" </dev/null ||
    die "the installation failed, see above; the next launch starts it anew"
  # Written last and moved into place, so that an interrupted installation does not count as complete.
  printf '%s\n' "$key${extra:+ $extra}" >"$root/.venv/.ready.part"
  mv "$root/.venv/.ready.part" "$root/.venv/.ready"
}

#!/usr/bin/env bash
# Installs what Switchyard builds on and says why. Safe to run again: a second call only looks.
#
#   deploy/setup.sh [--gpu] [--prefix DIR]
#
# --gpu     also the CUDA libraries and NCCL that LibTorch's GPU half loads
# --prefix  where LibTorch goes (default: $SWITCHYARD_DEPS, else ~/.cache/switchyard/deps);
#           outside the tree, so that a clean checkout keeps it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=versions.env
source "$here/versions.env"

prefix=${SWITCHYARD_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/switchyard/deps}
gpu=no
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=yes ;;
    --prefix)
      [ $# -ge 2 ] || { echo "setup: --prefix needs a folder" >&2; exit 1; }
      prefix=$2; shift ;;
    -h|--help) sed -n '2,9p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "setup: unknown argument '$1'; known: --gpu, --prefix DIR" >&2; exit 1 ;;
  esac
  shift
done

# Package and reason, one a line.
packages() {
  cat <<'LIST'
g++ the compiler
cmake configures the build
ninja-build runs the build
ccache makes a second build short
lld links in a fraction of ld's time
git the tests ask it which files are tracked
python3 runs the tree test and the fixture scripts
python3-pip fetches LibTorch's wheel
libgrpc++-dev calls between coordinator, worker and command line
protobuf-compiler generates messages
protobuf-compiler-grpc generates services
libprotobuf-dev specs and results are documents of it
libsqlite3-dev the record
sqlite3 tests look into the record
prometheus-cpp-dev metric registry and text format
libcpp-httplib-dev serves /metrics on loopback
libyaml-cpp-dev reads sweep files
libcli11-dev command line parsing
nlohmann-json3-dev event lines and JSON output
libboost-math-dev distributions for the statistics
libzstd-dev compresses batches and logs
zlib1g-dev reads gzip corpora
libssl-dev SHA-256 for identities
libgtest-dev unit tests
libgmock-dev matchers for them
libbenchmark-dev micro-benchmarks
libgloo-dev headers of the CPU process group
libfaketime tests run workers whose clocks are wrong
prometheus tests scrape a live run with the real one (brings promtool)
gnuplot-nox plots
clang-16 fuzzers and thread-safety analysis
clang-tidy-16 lint
clang-format-16 formatting
libclang-rt-16-dev sanitizer and libFuzzer run-times of clang
LIST
}

say() { echo "setup: $*"; }

missing=()
while read -r name reason; do
  if ! dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed'; then
    missing+=("$name")
    say "will install $name: $reason"
  fi
done < <(packages)

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(. /etc/os-release && echo "${ID:-}-${VERSION_ID:-}")" != "debian-$DEBIAN_RELEASE" ]; then
    say "warning: tested on Debian $DEBIAN_RELEASE only"
  fi
  sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "packages are missing and neither root nor sudo is at hand" >&2; exit 1; }
    sudo=(sudo)
  fi
  # Prometheus' package would start a server. A policy file forbids that for the time of this call.
  policy=/usr/sbin/policy-rc.d
  made_policy=no
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
    "${sudo[@]}" chmod 755 $policy
    made_policy=yes
    trap '"${sudo[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  if [ "$made_policy" = yes ]; then
    "${sudo[@]}" rm -f $policy
    trap - EXIT
    # Also keep it from starting at the next boot; Switchyard starts its own when it needs one.
    if [ -d /run/systemd/system ]; then
      "${sudo[@]}" systemctl disable --quiet prometheus prometheus-node-exporter 2>/dev/null || true
    fi
  fi
else
  say "Debian packages: all there"
fi

# LibTorch from its wheel. The CPU half loads with the CUDA run-time and CUPTI beside it.
torch_dir=$prefix/torch-$TORCH_VERSION
wheels() {
  local python_tag=${WHEEL_PYTHON}
  mkdir -p "$1"
  shift_dir=$1; shift
  python3 -m pip install --quiet --disable-pip-version-check --no-input --target "$shift_dir" --upgrade \
    --only-binary=:all: --python-version "$python_tag" --implementation cp "$@"
}
if [ ! -e "$torch_dir/.complete" ]; then
  say "will install LibTorch $TORCH_VERSION (CPU half, 1.2 GB) into $torch_dir: runs the models"
  rm -rf "$torch_dir"
  wheels "$torch_dir" --no-deps "torch==$TORCH_VERSION"
  wheels "$torch_dir/.cuda" "cuda-toolkit[cudart,cupti]==$CUDA_TOOLKIT_WHEEL_VERSION"
  cp -a "$torch_dir/.cuda/nvidia" "$torch_dir/" && rm -rf "$torch_dir/.cuda"
  touch "$torch_dir/.complete"
else
  say "LibTorch $TORCH_VERSION: there, in $torch_dir"
fi
if [ "$gpu" = yes ]; then
  if [ ! -e "$torch_dir/.complete-gpu" ]; then
    say "will install CUDA libraries and NCCL $NCCL_WHEEL_VERSION (3.5 GB) into $torch_dir: LibTorch's GPU half loads them"
    wheels "$torch_dir/.cuda" \
      "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==$CUDA_TOOLKIT_WHEEL_VERSION" \
      "nvidia-cudnn-cu13==$CUDNN_WHEEL_VERSION" "nvidia-cusparselt-cu13==$CUSPARSELT_WHEEL_VERSION" \
      "nvidia-nccl-cu13==$NCCL_WHEEL_VERSION" "nvidia-nvshmem-cu13==$NVSHMEM_WHEEL_VERSION"
    cp -a "$torch_dir/.cuda/nvidia" "$torch_dir/" && rm -rf "$torch_dir/.cuda"
    touch "$torch_dir/.complete-gpu"
  else
    say "CUDA libraries and NCCL: there"
  fi
fi
say "done"

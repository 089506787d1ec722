#!/usr/bin/env bash
# Build the native module for arm64 with a cross compiler and run the kernels' tests on it, under qemu's user emulation:
# the same test files as everywhere, in an arm64 Python, for every NEON variant and the portable one.
#
#   scripts/test_arm64.sh [--prepare | --prepared] [pytest arguments]
#
# --prepare only downloads and builds. --prepared only tests what is there from an earlier run, and exits with 77 where
# that is nothing, or older than the sources. Without pytest arguments: tests/ops and tests/native on a processor that has
# everything (some minutes), and a part of them on processors that lack i8mm or dot products, where an instruction of
# theirs would end the process.
#
# Debian only, since Python comes from Debian's arm64 packages, unpacked into build/arm64 (nothing is installed from
# them). Missing tools are installed when run as root. Speed under emulation says nothing about arm64 machines.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/build/arm64
root=$work/root
mode=all
case ${1:-} in --prepare | --prepared) mode=${1#--}; shift ;; esac

if [ $mode = prepared ]; then
  module=$(ls "$work"/build/_native*.so 2> /dev/null) || true
  if [ -z "$module" ] || [ -n "$(find CMakeLists.txt csrc -newer "$module" -type f -print -quit)" ]; then
    echo "there is no arm64 build of these sources: run scripts/test_arm64.sh --prepare" >&2
    exit 77
  fi
  if ! command -v qemu-aarch64 > /dev/null; then
    echo "missing: qemu-user; install it (apt-get install qemu-user)" >&2
    exit 77
  fi
fi

python_version() { basename "$(ls -d "$root"/usr/include/python3.*)"; }  # such as python3.11

prepare() {
  missing=()
  command -v aarch64-linux-gnu-g++ > /dev/null || missing+=(g++-aarch64-linux-gnu)
  command -v qemu-aarch64 > /dev/null || missing+=(qemu-user)
  command -v cmake > /dev/null || missing+=(cmake)
  command -v ninja > /dev/null || command -v make > /dev/null || missing+=(make)
  python=${PYTHON:-python3}
  "$python" -c 'import venv, ensurepip' 2> /dev/null || missing+=(python3-venv)
  if ((${#missing[@]})); then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
      echo "missing: ${missing[*]}; install them (apt-get install ${missing[*]}) and run again" >&2
      exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null
  fi

  # The arm64 Python and its libraries, by apt with directories and a package state of its own.
  if [ ! -e "$root/.complete" ]; then
    if ! command -v apt-get > /dev/null || ! command -v dpkg > /dev/null || ! grep -qs '^ID=debian' /etc/os-release; then
      echo "the arm64 Python comes from Debian's packages: run this on Debian, or in a container of it" >&2
      exit 1
    fi
    rm -rf "$root" "$work/apt"
    mkdir -p "$root" "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    touch "$work/apt/status"
    private_apt() {
      apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$work/apt" \
        -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User="$(id -un)" "$@"
    }
    private_apt update
    private_apt install --download-only -y --no-install-recommends python3-minimal libpython3-stdlib libpython3-dev libstdc++6 > /dev/null
    for package in "$work"/apt/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
    rm -rf "$work/apt"
    touch "$root/.complete"
  fi
  local version
  version=$(python_version)

  # What the tests import, as arm64 wheels; and nanobind for the build, which runs here.
  if [ ! -e "$work/site/.complete" ]; then
    rm -rf "$work/site" "$work/venv"
    "$python" -m venv "$work/venv"
    "$work/venv/bin/pip" install -q --disable-pip-version-check 'nanobind>=2.2'
    platforms=()
    for glibc in 2_17 2_24 2_28 2_34; do platforms+=(--platform "manylinux_${glibc}_aarch64"); done
    "$work/venv/bin/pip" install -q --disable-pip-version-check --target "$work/site" --only-binary=:all: --implementation cp \
      --python-version "${version#python}" "${platforms[@]}" --platform manylinux2014_aarch64 \
      'numpy>=1.26' 'msgspec>=0.18' 'gguf>=0.17' 'hypothesis>=6.100' 'pytest>=8' 'pytest-asyncio>=0.24' 'pytest-timeout>=2.3'
    touch "$work/site/.complete"
  fi

  generator=(); command -v ninja > /dev/null && generator=(-G Ninja)
  cmake "${generator[@]}" -S . -B "$work/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$work/venv/bin/python" \
    -DPython_INCLUDE_DIR="$root/usr/include/$version" -DCMAKE_CXX_FLAGS="-idirafter $root/usr/include" > /dev/null
  cmake --build "$work/build" -j "${JOBS:-2}" > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
}

[ $mode = prepared ] || prepare
[ $mode != prepare ] || exit 0
version=$(python_version)

# on PROCESSOR ISAS [pytest arguments]: ISAS are the instruction sets that must be chosen from there, best first.
on() {
  local processor=$1 isas=$2
  shift 2
  echo "== $processor: $isas"
  env PYTHONPATH="src:tests:$work/site" TOKENTRAIL_NATIVE="$(ls "$work"/build/_native*.so)" EXPECTED_ISAS="$isas" \
    qemu-aarch64 -cpu "$processor" -L "$root" "$root/usr/bin/$version" -c '
import os, sys, native_build
from tokentrail.ops.native import available_isas
found = " ".join(available_isas())
if found != os.environ["EXPECTED_ISAS"]:
    sys.exit("found the instruction sets " + found)
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "timeout=1200", *sys.argv[1:]]))' "$@"
}

if (($#)); then
  on max "neon_i8mm neon_dotprod neon portable" "$@"
else
  on max "neon_i8mm neon_dotprod neon portable" tests/ops tests/native
  on neoverse-n1 "neon_dotprod neon portable" tests/ops -k "not layouts and not sampling"
  on cortex-a53 "neon portable" tests/ops -k "not layouts and not sampling"
fi

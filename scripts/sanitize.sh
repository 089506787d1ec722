#!/usr/bin/env bash
# Build the native module with sanitizers, beside the installed one, and run the tests of the kernels on it.
#
#   scripts/sanitize.sh [address|thread] [BUILD_DIR] [pytest arguments]
#
# address: out-of-bounds and use-after-free in the heap, and undefined behaviour. thread: data races.
# Needs what a build from source needs (cmake, ninja or make, a compiler with sanitizers, nanobind) and the `test` extra.
# Leaks are not looked for: Python keeps much until its end.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-address}
build=${2:-build/sanitize-$kind}
shift $(($# < 2 ? $# : 2))
case $kind in
  address) library=libasan.so tests=(tests/native tests/ops) ;;
  # What runs on several threads. Not the random steps, which let sequences write to one slot of the cache at once, nor
  # sizes that no machine has, which this sanitizer ends the process for.
  thread)
    library=libtsan.so
    tests=(tests/native tests/ops/test_same_bytes.py tests/models/test_model_same_bytes.py -k "not random_steps and not impossible")
    ;;
  *) echo "usage: $0 [address|thread] [BUILD_DIR] [pytest arguments]" >&2; exit 2 ;;
esac

python=$(command -v "${PYTHON:-python3}")
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=None -DTOKENTRAIL_SANITIZE="$kind" -DPython_EXECUTABLE="$python" > /dev/null
cmake --build "$build" -j "${JOBS:-2}"

runtime=$("${CXX:-c++}" -print-file-name="$library")
standard=$("${CXX:-c++}" -print-file-name=libstdc++.so.6)  # loaded late, its exceptions would escape the sanitizer
env LD_PRELOAD="$(realpath "$runtime"):$(realpath "$standard")" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=8192 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  TSAN_OPTIONS=halt_on_error=1:history_size=4 \
  PYTHONPATH=tests TOKENTRAIL_NATIVE="$(realpath "$(ls "$build"/_native*.so)")" \
  "$python" -m pytest -q -p native_build -p no:cacheprovider --capture=sys -o timeout=600 "${tests[@]}" "$@"

#!/bin/sh
# Build llama.cpp for this processor: its server, llama-bench, llama-batched-bench, llama-quantize and the shared
# libraries. The source is that in the sdist of llama-cpp-python, checked by sha256.
#
#     benchmarks/peers/build_llamacpp.sh [FOLDER]
#
# FOLDER is by default the one where the engine `llamacpp` looks for a build: llamacpp in slipstream's cache folder.
# It needs pip, cmake, a C++ compiler and 2 GB of disk space. It takes ten minutes on two cores. JOBS is the number of
# compilers at a time. SOURCE is llama.cpp's source folder, for a machine without a network. CMAKE_FLAGS are further
# flags of cmake, for example to leave instructions out:
#
#     CMAKE_FLAGS="-DGGML_NATIVE=OFF -DGGML_AVX512=OFF" benchmarks/peers/build_llamacpp.sh ~/llamacpp-avx2
set -eu

VERSION=0.3.36
COMMIT=0c1e57098 # of llama.cpp in that version
SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
TARGETS="llama-bench llama-batched-bench llama-quantize llama-server" # in this order: the server takes longest
PYTHON=${PYTHON:-python3}
JOBS=${JOBS:-$(nproc)}
CACHE=${SLIPSTREAM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/slipstream}
FOLDER=${1:-$CACHE/llamacpp}
FLAGS="-DGGML_NATIVE=ON ${CMAKE_FLAGS:-}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "${SOURCE:-}" ]; then
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest "$work" "llama-cpp-python==$VERSION"
    archive="$work/llama_cpp_python-$VERSION.tar.gz"
    echo "$SHA256  $archive" | sha256sum --check --quiet
    tar -xzf "$archive" -C "$work"
    SOURCE="$work/llama_cpp_python-$VERSION/vendor/llama.cpp"
    # GCC up to 12.3 and 13.2 drops the stores before _tile_loadconfig (its bug 114098): prompts then end with an
    # illegal instruction on processors with AMX
    sed -i 's/^    _tile_loadconfig(&tc);/    asm volatile("" : : "r"(\&tc) : "memory");\n&/' \
        "$SOURCE/ggml/src/ggml-cpu/amx/mmq.cpp"
fi

# shellcheck disable=SC2086
cmake -S "$SOURCE" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF $FLAGS > "$work/cmake.txt"
# shellcheck disable=SC2086
nice -n 10 cmake --build "$work/build" --parallel "$JOBS" --target $TARGETS > "$work/build.txt" ||
    { tail -n 40 "$work/build.txt" >&2; exit 1; }

rm -rf "$FOLDER.new"
mkdir -p "$FOLDER.new"
(cd "$work/build/bin" && cp -P $TARGETS ./*.so* "$FOLDER.new")
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$work/build/CMakeCache.txt")
instructions=$(sed -n 's/^-- Adding CPU backend variant [^:]*: *//p' "$work/cmake.txt" | head -n 1)
"$PYTHON" - "$VERSION" "$COMMIT" "$FLAGS" "$("$compiler" --version | head -n 1)" "$instructions" \
    > "$FOLDER.new/build.json" << 'END'
import json
import sys

names = "llama-cpp-python", "commit", "flags", "compiler", "instructions"
print(json.dumps(dict(zip(names, (value.strip() for value in sys.argv[1:]))), indent=1))
END
rm -rf "$FOLDER"
mv "$FOLDER.new" "$FOLDER"
echo "$FOLDER"

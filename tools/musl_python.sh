#!/bin/sh
# Builds a CPython against musl, for make release-check (HIWATER_PYTHON_ROOTS=PREFIX) and make test-aarch64-musl.
#   tools/musl_python.sh CPYTHON ZLIB LIBFFI PREFIX [PROCESSOR]
# The first three are folders with sources; CPYTHON's are as released, without Debian's patches, which take ensurepip away.
# Needs PROCESSOR-linux-musl-gcc (Debian's musl-dev), of musl 1.2.4 or later: the wheels of numpy need that. (trixie has
# 1.2.5, which installs on bookworm.) It takes five minutes, and has no OpenSSL, so its pip installs files alone. For
# another processor than this one, it needs that one's musl-dev and compiler (musl-dev:arm64, g++-aarch64-linux-gnu for
# aarch64), and first on PATH a CPython of exactly the same version (of 3.13.5 for 3.13.5), such as what this script built
# for this processor: PATH=PREFIX/bin:$PATH. A libffi without its configure needs autoconf, automake, libtool and
# libltdl-dev.
set -eu
[ ! -e "$1/debian/patches/ensurepip-disabled.diff" ] || {
    echo "$1 has Debian's patches, and so no ensurepip: unpack the released archive (python3.N_*.orig.tar.*)" >&2
    exit 2
}
python=$(realpath "$1") zlib=$(realpath "$2") libffi=$(realpath "$3") prefix=$(mkdir -p "$4" && realpath "$4")
here=$(uname -m) processor=${5:-$(uname -m)}
compiler=gcc system='' build='' more=''
[ "$processor" = "$here" ] || {
    compiler=$processor-linux-gnu-gcc
    version=$(sed -n 's/^#define PY_VERSION  *"\(3\.[0-9]*\).*/\1/p' "$python/Include/patchlevel.h")
    # 3.11 asks --build whether it is for musl, and takes no readelf whose name has no processor.
    system="--host=$processor-linux-musl --build=$here-linux-musl --with-build-python=$(command -v "python$version")"
    # The cross compiler's libatomic, and what libgcc has for atomic instructions, ask glibc.
    build="ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no ac_cv_libatomic_needed=no"
    build="$build READELF=$processor-linux-gnu-readelf"
    [ "$processor" != aarch64 ] || more=-mno-outline-atomics
}

mkdir -p "$prefix/tools"
export CC="$prefix/tools/cc" CFLAGS="-O2 -fPIC"
# configure asks for the folder of Debian's libraries, which are glibc's. The kernel's headers are those of the system.
cat >"$CC" <<END_OF_CC
#!/bin/sh
[ "\$1" = --print-multiarch ] && exit
exec $processor-linux-musl-gcc $more -idirafter /usr/include -idirafter "/usr/include/$(gcc -print-multiarch)" "\$@"
END_OF_CC
chmod +x "$CC"

cd "$zlib"
CHOST=$processor-linux-musl AR="$compiler-ar" RANLIB="$compiler-ranlib" ./configure --static --prefix="$prefix" >/dev/null
make -j "$(nproc)" install >/dev/null
cd "$libffi"
[ -e configure ] || ./autogen.sh >/dev/null
./configure --host="$processor-linux-musl" --prefix="$prefix" --disable-shared --disable-docs --disable-multi-os-directory >/dev/null
make -j "$(nproc)" install >/dev/null
cd "$python"
# 3.11's setup.py looks for libraries in CPPFLAGS and LDFLAGS alone, then among the system's.
# shellcheck disable=SC2086
./configure $system $build --prefix="$prefix" CFLAGS="-O1 -g0" --disable-test-modules PKG_CONFIG=/bin/false \
    CPPFLAGS="-I$prefix/include" LDFLAGS="-L$prefix/lib" >/dev/null
make -j "$(nproc)" install >/dev/null

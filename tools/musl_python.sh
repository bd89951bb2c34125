#!/bin/sh
# Builds a CPython against musl, for make release-check (HIWATER_PYTHON_ROOTS=PREFIX) and make test-aarch64-musl.
#   tools/musl_python.sh CPYTHON ZLIB LIBFFI PREFIX [PROCESSOR]
# The first three are folders with sources. Needs musl-gcc (Debian's musl-tools), of musl 1.2.4 or later: the wheels of
# numpy need that. It takes five minutes, and has no OpenSSL, so its pip installs files alone. For another processor than
# this one, it needs that one's musl-tools and compiler (musl-tools:arm64, g++-aarch64-linux-gnu for aarch64), and a
# CPython of exactly the same version on PATH (of 3.13.5 for 3.13.5). A libffi without its configure needs autoconf, automake, libtool and libltdl-dev.
set -eu
python=$(realpath "$1") zlib=$(realpath "$2") libffi=$(realpath "$3") prefix=$(mkdir -p "$4" && realpath "$4")
here=$(uname -m) processor=${5:-$(uname -m)}
gcc=musl-gcc compiler=gcc system= build= more=
[ "$processor" = "$here" ] || {
    gcc=$processor-linux-musl-gcc compiler=$processor-linux-gnu-gcc
    version=$(sed -n 's/^#define PY_VERSION  *"\(3\.[0-9]*\).*/\1/p' "$python/Include/patchlevel.h")
    system="--host=$processor-linux-musl --build=$here-linux-gnu --with-build-python=$(command -v "python$version")"
    # The cross compiler's libatomic, and what libgcc has for atomic instructions, ask glibc.
    build="ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no ac_cv_libatomic_needed=no"
    [ "$processor" != aarch64 ] || more=-mno-outline-atomics
}

mkdir -p "$prefix/tools"
export CC="$prefix/tools/cc" CFLAGS="-O2 -fPIC"
# configure asks for the folder of Debian's libraries, which are glibc's. The kernel's headers are those of the system.
cat >"$CC" <<END_OF_CC
#!/bin/sh
[ "\$1" = --print-multiarch ] && exit
exec $gcc $more -idirafter /usr/include -idirafter "/usr/include/$(gcc -print-multiarch)" "\$@"
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
# shellcheck disable=SC2086
./configure $system $build --prefix="$prefix" CFLAGS="-O1 -g0" --disable-test-modules PKG_CONFIG=/bin/false \
    ZLIB_CFLAGS="-I$prefix/include" ZLIB_LIBS="-L$prefix/lib -lz" \
    LIBFFI_CFLAGS="-I$prefix/include" LIBFFI_LIBS="-L$prefix/lib -lffi" >/dev/null
make -j "$(nproc)" install >/dev/null

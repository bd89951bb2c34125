#!/bin/sh
# Builds a CPython against musl, for make release-check (HIWATER_PYTHON_ROOTS=PREFIX).
#   tools/musl_python.sh CPYTHON ZLIB LIBFFI PREFIX
# The first three are folders with sources. Needs musl-gcc (Debian's musl-tools), of musl 1.2.4 or later: the wheels of
# numpy need that. It takes five minutes, and has no OpenSSL, so its pip installs files alone.
set -eu
python=$(realpath "$1") zlib=$(realpath "$2") libffi=$(realpath "$3") prefix=$(mkdir -p "$4" && realpath "$4")

mkdir -p "$prefix/tools"
export CC="$prefix/tools/cc" CFLAGS="-O2 -fPIC"
# configure asks for the folder of Debian's libraries, which are glibc's. The kernel's headers are those of the system.
cat >"$CC" <<END
#!/bin/sh
[ "\$1" = --print-multiarch ] && exit
exec musl-gcc -idirafter /usr/include -idirafter "/usr/include/$(gcc -print-multiarch)" "\$@"
END
chmod +x "$CC"

cd "$zlib"
./configure --static --prefix="$prefix" >/dev/null
make -j "$(nproc)" install >/dev/null
cd "$libffi"
[ -e configure ] || ./autogen.sh >/dev/null
./configure --host="$(uname -m)-linux-musl" --prefix="$prefix" --disable-shared --disable-docs --disable-multi-os-directory >/dev/null
make -j "$(nproc)" install >/dev/null
cd "$python"
./configure --prefix="$prefix" CFLAGS="-O1 -g0" --disable-test-modules PKG_CONFIG=/bin/false \
    ZLIB_CFLAGS="-I$prefix/include" ZLIB_LIBS="-L$prefix/lib -lz" \
    LIBFFI_CFLAGS="-I$prefix/include" LIBFFI_LIBS="-L$prefix/lib -lffi" >/dev/null
make -j "$(nproc)" install >/dev/null

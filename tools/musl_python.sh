#!/bin/sh
# Builds a CPython against musl, for make wheels and make release-check (HIWATER_PYTHON_ROOTS=PREFIX).
#   tools/musl_python.sh CPYTHON ZLIB PREFIX
# CPYTHON and ZLIB are folders with their sources. Needs musl-gcc (Debian's musl-tools), of musl 1.2.4 or later: the
# wheels of numpy need that. It takes five minutes, and has no OpenSSL, so its pip installs files alone.
set -eu
python=$(realpath "$1") zlib=$(realpath "$2") prefix=$(mkdir -p "$3" && realpath "$3")

mkdir -p "$prefix/tools"
export CC="$prefix/tools/cc"
# configure asks for the folder of Debian's libraries, which are glibc's. The kernel's headers are those of the system.
cat >"$CC" <<END
#!/bin/sh
[ "\$1" = --print-multiarch ] && exit
exec musl-gcc -idirafter /usr/include -idirafter "/usr/include/$(gcc -print-multiarch)" "\$@"
END
chmod +x "$CC"

cd "$zlib"
CFLAGS="-O2 -fPIC" ./configure --static --prefix="$prefix" >/dev/null
make -j "$(nproc)" install >/dev/null
cd "$python"
./configure --prefix="$prefix" CFLAGS="-O1 -g0" --disable-test-modules PKG_CONFIG=/bin/false \
    ZLIB_CFLAGS="-I$prefix/include" ZLIB_LIBS="-L$prefix/lib -lz" >/dev/null
make -j "$(nproc)" install >/dev/null

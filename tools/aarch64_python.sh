#!/bin/sh
# Makes an environment of Debian's CPython 3.11 for aarch64 that runs here under qemu (make test-aarch64-engine).
#   tools/aarch64_python.sh FOLDER [MIRROR]
# Needs debootstrap, qemu-user-static and g++-aarch64-linux-gnu, and root. FOLDER/venv/bin/python3 is a script that starts the emulator, so that
# what a program starts by sys.executable is emulated, too.
set -eu
mkdir -p "$1"
folder=$(realpath "$1") root=$(realpath "$1")/root

[ -e "$root/usr/bin/python3.11" ] || {
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3,libpython3.11-dev bookworm "$root" ${2:+"$2"} >"$folder/log"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done
}
mkdir -p "$folder/venv/bin" "$folder/venv/lib/python3.11/site-packages"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n' >"$folder/venv/pyvenv.cfg"
cat >"$folder/venv/bin/python3" <<END
#!/bin/sh
exec qemu-aarch64-static -L "$root" -0 "\$0" "$root/usr/bin/python3.11" "\$@"
END
chmod +x "$folder/venv/bin/python3"
# Tests compile libraries for the interpreter that they run in.
for pair in cc:gcc c++:g++; do
    cat >"$folder/venv/bin/${pair%:*}" <<END
#!/bin/sh
exec aarch64-linux-gnu-${pair#*:} "\$@" -isystem "$root/usr/include/python3.11" -idirafter "$root/usr/include"
END
    chmod +x "$folder/venv/bin/${pair%:*}"
done

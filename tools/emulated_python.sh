#!/bin/sh
# Makes a command of a CPython for aarch64 that runs here under qemu, for make release-check: HIWATER_PYTHON_ROOTS=FOLDER.
#   tools/emulated_python.sh FOLDER INTERPRETER [ROOT]
# INTERPRETER is as ROOT has it: /usr/bin/python3.13 of a system that `debootstrap --foreign --arch=arm64` fetched and
# `dpkg-deb --extract` unpacked; or, without ROOT, what tools/musl_python.sh built for aarch64. Needs qemu-user-static.
# FOLDER/bin/python3.13 is a script that starts the emulator, so that what a program starts by sys.executable, and each
# environment that is made with it, is emulated, too. In such a ROOT nothing has compiled the standard library, and each
# start takes half a minute: `python3.13 -m compileall -q -s ROOT ROOT/usr/lib/python3.13` does, with the same minor version.
set -eu
mkdir -p "$1/bin"
command=$(realpath "$1")/bin/$(basename "$2") interpreter=$(realpath -s "$2") system=
[ $# -lt 3 ] || { system="-L \"$(realpath "$3")\"" interpreter=$(realpath "$3")$2; }
cat >"$command" <<END
#!/bin/sh
exec $(command -v qemu-aarch64-static) $system -0 "\$0" "$interpreter" "\$@"
END
chmod +x "$command"

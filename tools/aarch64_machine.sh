#!/bin/sh
# Tries hiwater in an emulated machine with a Linux kernel for aarch64 (make test-aarch64-machine), which has what an
# emulator of programs lacks: addresses above 2^47, limits of address space, /proc/PID/pagemap, children of any sort.
#   tools/aarch64_machine.sh FOLDER NATIVE_TESTS KERNEL
# FOLDER is as tools/aarch64_python.sh made it, with hiwater installed. KERNEL is boot/vmlinuz-* of Debian's package
# linux-image-*-arm64 for that processor; of linux-image-*-arm64-16k, where pages have 16 KiB, the same script tells that
# hiwater says so. Needs qemu-system-arm, cpio, and 4 GB of memory; it takes some five minutes.
set -eu
folder=$(realpath "$1") tests=$(realpath "$2") kernel=$(realpath "$3") tree=$(dirname "$(dirname "$(realpath "$0")")")
system=$folder/machine
rm -rf "$system"
mkdir -p "$system/dev" "$system/proc" "$system/sys" "$system/tmp" "$system/tree"
(cd "$folder/root" && tar -cf - --exclude=./dev --exclude=./proc --exclude=./var --exclude=./boot --exclude=./lib/modules \
    --exclude=./debootstrap --exclude='./usr/share/*' --exclude='./usr/include/*' --exclude='*.a' .) | tar -xf - -C "$system"
mkdir -p "$system/venv/bin" "$system/venv/lib/python3.11"
cp -rL "$folder/venv/lib/python3.11/site-packages" "$system/venv/lib/python3.11"
cp "$folder/venv/pyvenv.cfg" "$system/venv"
ln -s /usr/bin/python3.11 "$system/venv/bin/python3"
cp -r "$tree/tools" "$system/tree"
cp "$tests" "$system/tree/native_tests"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$system/etc/passwd"

cat >"$system/init" <<'END_OF_INIT'
#!/bin/sh
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /tmp
ln -sf /proc/self/fd /dev/fd
export PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TERM=dumb
cd /tree && sh checks && echo 'the machine: all is well'
echo o >/proc/sysrq-trigger
sleep 60
END_OF_INIT
chmod +x "$system/init"

cat >"$system/tree/checks" <<'END_OF_CHECKS'
set -eu
echo "$(uname -rm), pages of $(getconf PAGESIZE)"
[ "$(getconf PAGESIZE)" = 4096 ] || { # programs run, and a line says why nothing is recorded
    python3 -m hiwater run -c "print('ran')" >/tmp/said 2>&1
    cat /tmp/said
    grep -qx ran /tmp/said && grep -q "knows pages of 4 KiB alone" /tmp/said
    exit
}
python3 -c "
import mmap, ctypes
at = ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 20)))
print(f'blocks are at {at:#x}')
assert at >> 47 and id([]) >> 47"
python3 -m hiwater doctor | cat
python3 tools/truth_probe.py
cat >/tmp/nodes.py <<'END_OF_PROGRAM'
class Node:
    def __init__(self):
        self.data = bytearray(1000)
kept = [Node() for _ in range(5000)]
END_OF_PROGRAM
python3 -m hiwater run -q --holders -o /tmp/nodes.hiw /tmp/nodes.py
python3 -m hiwater holders /tmp/nodes.hiw >/tmp/said
grep 'held by list `kept` of module `__main__`' /tmp/said
! python3 -m hiwater run --limit 200MiB -o /tmp/limit.hiw -c "held = [bytearray(10**6) for _ in range(1000)]" 2>/tmp/said
grep 'a request for memory was refused' /tmp/said
HIWATER_TEST_SHARE=10 ./native_tests --no-colors --test-suite-exclude=unwind
END_OF_CHECKS

(cd "$system" && find . | cpio --create --format=newc --quiet) >"$folder/machine.cpio"
timeout 1800 qemu-system-aarch64 -machine virt,gic-version=3 -cpu max,pauth-impdef=on,lpa2=off -accel tcg,thread=multi \
    -smp 2 -m 3000 -nographic -nic none -no-reboot -kernel "$kernel" -initrd "$folder/machine.cpio" \
    -append "console=ttyAMA0 quiet panic=-1 rdinit=/init" </dev/null | tee "$folder/machine.log"
grep -q 'the machine: all is well' "$folder/machine.log"

# Sourced by the commands beside it: sets `python` to the interpreter that hiwater is installed for.
here=$(dirname -- "$(readlink -f -- "$0")")
python=
case $here in
*/lib*/python*/*-packages/hiwater/contrib/compat/dropin/bin) # installed: <prefix>/lib/python3.11/site-packages/hiwater/contrib/compat/dropin/bin
    library=${here%/*-packages/hiwater/contrib/compat/dropin/bin}
    python=${library%/*/*}/bin/${library##*/}
    [ -x "$python" ] || python=$(command -v "${library##*/}" || true)
    ;;
esac
[ -n "$python" ] || python=$(command -v python3 || command -v python || true)
if [ -z "$python" ]; then
    echo "${0##*/}: there is no Python on PATH; put the one that hiwater is installed for there" >&2
    exit 127
fi

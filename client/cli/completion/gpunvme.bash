# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# Completes the programs of gpunvmefs, which know the words that may follow.

_gpunvme() {
    local line=${COMP_LINE:0:COMP_POINT} current breaks before='' words
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=('')
    current=${words[-1]}
    # Bash replaces only what follows the last of its break characters.
    breaks=${COMP_WORDBREAKS//[^=:]/}
    [ -z "$breaks" ] || before=${current%"${current##*["$breaks"]}"}
    mapfile -t COMPREPLY < <("${words[0]}" --complete "${words[@]:1}" 2>/dev/null | cut -f 1)
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    if [ -z "${COMPREPLY[*]}" ]; then
        compopt -o default 2>/dev/null || true
    elif [[ ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null || true
    fi
}
complete -F _gpunvme gpunvme gpunvme-run gpunvme-sim gpunvmefs mkfs.gpunvme fsck.gpunvme \
    dump.gpunvme tune.gpunvme

# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# Completes the command gpunvme from its --help output.

_gpunvme() {
    local command=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} words=
    local previous=${COMP_WORDS[COMP_CWORD - 1]} sub=${COMP_WORDS[1]:-}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words="$("$command" --help 2>/dev/null | sed -n 's/^  gpunvme \([a-z]*\) .*/\1/p') --help --version"
    elif [[ $previous = -o || $previous = --output ]]; then
        words='text json'
        [ "$sub" != stats ] || words+=' prometheus'
    elif [[ $previous = -p || $previous = --path ]]; then
        words='auto gpu bounce'
    elif [[ $current = -* ]]; then
        words=$("$command" "$sub" --help 2>/dev/null | sed -n 's/^  -., \(--[a-z-]*=\{0,1\}\).*/\1/p')
    elif [[ $sub = bind || $sub = unbind || $sub = check || $sub = identify || $sub = regs ]]; then
        # NVMe controllers have PCI class 0108.
        words=$(grep -l '^0x0108' /sys/bus/pci/devices/*/class 2>/dev/null | cut -d/ -f6)
    fi
    if [ -n "$words" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
        [[ ${COMPREPLY[0]:-} != *= ]] || compopt -o nospace 2>/dev/null
    else
        compopt -o default 2>/dev/null || true
    fi
}
complete -F _gpunvme gpunvme

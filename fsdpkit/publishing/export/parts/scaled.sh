scaled() {    # a number with up to six decimals, in millionths
    local part=
    if [[ $1 == *.* ]]; then part=${1#*.}; fi
    part=${part}000000
    millionths=$(( 10#${1%%.*} * 1000000 + 10#${part:0:6} ))
}
